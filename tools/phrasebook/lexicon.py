"""The words of the phrasebook, as tables that can be extended without knowing the grammar.

`entries.py` reads the larger tables into records. The number words are in `numbers.py`.
"""

from tools.phrasebook.text import Text

# Persons that can have a possessor: "my brother", but not "my man".
RELATED = (
    "brother sister mother father aunt uncle neighbour colleague teacher doctor customer guest "
    "child gardener"
).split()

# Entries are "English German gender plural"; "-" as plural marks a mass noun.
NOUNS = {
    "person": """
        teacher Lehrer m Lehrer; pupil Schüler m Schüler; boy Junge w Jungen;
        girl Mädchen n Mädchen; child Kind n Kinder; man Mann m Männer;
        woman Frau f Frauen; doctor Arzt m Ärzte;
        student Student w Studenten; neighbour Nachbar w Nachbarn; colleague Kollege w Kollegen;
        customer Kunde w Kunden; policeman Polizist w Polizisten; nurse Krankenschwester f
        Krankenschwestern; actress Schauspielerin f Schauspielerinnen; queen Königin f Königinnen;
        gardener Gärtner m Gärtner; baker Bäcker m Bäcker; waiter Kellner m Kellner;
        artist Künstler m Künstler; brother Bruder m Brüder; sister Schwester f Schwestern;
        mother Mutter f Mütter; father Vater m Väter; aunt Tante f Tanten; uncle Onkel m Onkel;
        guest Gast m Gäste""",
    "animal": """
        dog Hund m Hunde; cat Katze f Katzen; horse Pferd n Pferde; bear Bär w Bären;
        rabbit Hase w Hasen; bird Vogel m Vögel; monkey Affe w Affen; cow Kuh f Kühe;
        pig Schwein n Schweine; mouse Maus f Mäuse; lion Löwe w Löwen; duck Ente f Enten""",
    "fruit": """
        apple Apfel m Äpfel; pear Birne f Birnen; banana Banane f Bananen; tomato Tomate f Tomaten;
        carrot Karotte f Karotten; egg Ei n Eier; potato Kartoffel f Kartoffeln""",
    "dish": """
        soup Suppe f Suppen; salad Salat m Salate; sauce Soße f Soßen; pizza Pizza f Pizzen""",
    "cake": """
        cake Kuchen m Kuchen; tart Torte f Torten; pudding Pudding m Puddings;
        biscuit Keks m Kekse""",
    "drink": """
        milk Milch f -; water Wasser n -; tea Tee m -; coffee Kaffee m -; juice Saft m -;
        beer Bier n -; wine Wein m -""",
    "text": """
        book Buch n Bücher; letter Brief m Briefe; poem Gedicht n Gedichte;
        report Bericht m Berichte""",
    "tale": "story Geschichte f Geschichten",
    "reading": "newspaper Zeitung f Zeitungen; magazine Zeitschrift f Zeitschriften",
    "thing": """
        key Schlüssel m Schlüssel; clock Uhr f Uhren; umbrella Regenschirm m Regenschirme;
        suitcase Koffer m Koffer; camera Kamera f Kameras; ball Ball m Bälle; picture Bild n Bilder;
        guitar Gitarre f Gitarren; toy Spielzeug n Spielzeuge; knife Messer n Messer""",
    "vessel": """
        cup Tasse f Tassen; glass Glas n Gläser; bottle Flasche f Flaschen;
        bowl Schüssel f Schüsseln;
        plate Teller m Teller; vase Vase f Vasen; jug Krug m Krüge""",
    "clothing": """
        coat Mantel m Mäntel; jacket Jacke f Jacken; shirt Hemd n Hemden; dress Kleid n Kleider;
        suit Anzug m Anzüge; scarf Schal m Schals; skirt Rock m Röcke""",
    "device": """
        lamp Lampe f Lampen; radio Radio n Radios; computer Computer m Computer;
        television Fernseher m Fernseher""",
    "opening": """
        door Tür f Türen; window Fenster n Fenster; gate Tor n Tore""",
    "surface": """
        table Tisch m Tische; chair Stuhl m Stühle; bench Bank f Bänke; bed Bett n Betten;
        shelf Regal n Regale; sofa Sofa n Sofas""",
    "place": """
        garden Garten m Gärten; kitchen Küche f Küchen; park Park m Parks; forest Wald m Wälder;
        city Stadt f Städte; room Zimmer n Zimmer; cellar Keller m Keller; office Büro n Büros""",
    "building": """
        house Haus n Häuser; school Schule f Schulen; museum Museum n Museen;
        church Kirche f Kirchen;
        hotel Hotel n Hotels; hospital Krankenhaus n Krankenhäuser; station Bahnhof m Bahnhöfe;
        library Bibliothek f Bibliotheken; theatre Theater n Theater; cinema Kino n Kinos""",
    "vehicle": """
        car Auto n Autos; bus Bus m Busse; train Zug m Züge; bicycle Fahrrad n Fahrräder;
        taxi Taxi n Taxis; ship Schiff n Schiffe""",
}

# Compounds: every modifier of a row combines with every head of the row. The German modifier
# includes its linking element (Küche + n, Geschichte - e + s).
COMPOUNDS = (
    (
        "kitchen Küchen, garden Garten, office Büro, school Schul, hotel Hotel, cellar Keller, "
        "hospital Krankenhaus, library Bibliotheks, museum Museums, church Kirchen",
        "table, chair, bench, lamp, clock, door, window, key, shelf",
    ),
    (
        "potato Kartoffel, tomato Tomaten, onion Zwiebel, mushroom Pilz, cheese Käse, fish Fisch, "
        "bean Bohnen, vegetable Gemüse, carrot Karotten",
        "soup, salad, sauce, pizza",
    ),
    (
        "apple Apfel, cherry Kirsch, strawberry Erdbeer, lemon Zitronen, orange Orangen, "
        "plum Pflaumen, chocolate Schokoladen, nut Nuss, banana Bananen",
        "cake, tart, pudding, biscuit",
    ),
    (
        "apple Apfel, cherry Kirsch, pear Birnen, orange Orangen, tomato Tomaten, carrot Karotten",
        "juice",
    ),
    (
        "history Geschichts, music Musik, art Kunst, sports Sport, animal Tier, children's Kinder, "
        "travel Reise",
        "book, magazine, newspaper, museum",
    ),
    (
        "history Geschichts, music Musik, art Kunst, sports Sport, language Sprach",
        "teacher, pupil, student, school",
    ),
    (
        "city Stadt, village Dorf, forest Wald, castle Schloss, island Insel",
        "park, library, museum, school, hospital, church, theatre, hotel",
    ),
    (
        "winter Winter, summer Sommer, silk Seiden, leather Leder, wool Woll, sports Sport",
        "coat, jacket, shirt, dress, suit, scarf, skirt",
    ),
    ("tea Tee, milk Milch, wine Wein, beer Bier, water Wasser", "glass, bottle, jug"),
    ("tea Tee, coffee Kaffee, milk Milch", "cup"),
    (
        "wooden Holz, silver Silber, gold Gold, glass Glas, plastic Plastik",
        "bowl, vase, plate, table, door, clock, cup",
    ),
)

NAMES = {
    "f": ("Anna", "Maria", "Julia", "Lena", "Eva", "Emma", "Clara", "Sophie"),
    "m": ("Peter", "Paul", "Martin", "Tim", "Leon", "David", "Karl", "Anton"),
}

# Irregular English forms.
ENGLISH_PLURALS = {
    "child": "children",
    "man": "men",
    "woman": "women",
    "policeman": "policemen",
    "mouse": "mice",
    "knife": "knives",
    "shelf": "shelves",
    "tomato": "tomatoes",
    "potato": "potatoes",
    "scarf": "scarves",
}
ENGLISH_GERUNDS = {
    "sit": "sitting",
    "swim": "swimming",
    "run": "running",
    "put": "putting",
    "get": "getting",
    "lie": "lying",
}

# Abbreviations for several classes in the tables below.
GROUPS = {
    "BEING": "person animal",
    "TEXT": "text tale",
    "ITEM": "text reading thing vessel clothing device",
    "GOODS": "fruit dish cake drink text reading thing vessel clothing device surface vehicle",
    "ANY": "person animal text thing vessel clothing surface building vehicle",
    "WARES": "thing vessel clothing device surface vehicle",
    "SHOWN": "text thing clothing device",
}
# Abbreviations for several frames: SPOT, followed by a case, is a place at a piece of furniture;
# GOAL is a place to go to.
FRAME_GROUPS = {
    "SPOT": ("on auf {} surface", "under unter {} surface", "next to neben {} surface"),
    "GOAL": ("into in akk place building", "to zu dat building", "behind hinter akk building"),
}

# infinitive, past | prefix-infinitive third-person participle, "sein" if it forms the perfect |
# subjects | frames
# Frames are separated by ";" (an empty one is intransitive), the slots of a frame by ",". A slot is
# "English-preposition German-preposition case classes". A final "!" marks a stative verb.
VERBS = """
read, read             | lesen liest gelesen                | person | akk TEXT reading
write, wrote           | schreiben schreibt geschrieben     | person | akk TEXT
buy, bought            | kaufen kauft gekauft               | person | akk GOODS
sell, sold             | verkaufen verkauft verkauft        | person | akk GOODS
eat, ate               | essen isst gegessen                | person | akk fruit dish cake
eat, ate               | fressen frisst gefressen           | animal | akk fruit cake
drink, drank           | trinken trinkt getrunken           | person | akk drink
prepare, prepared      | zu-bereiten bereitet zubereitet    | person | akk dish
bake, baked            | backen backt gebacken              | person | akk cake
see, saw               | sehen sieht gesehen                | BEING  | akk ANY !
find, found            | finden findet gefunden             | person | akk ITEM animal !
look for, looked       | suchen sucht gesucht               | person | akk ITEM BEING
need, needed           | brauchen braucht gebraucht         | person | akk ITEM surface !
repair, repaired       | reparieren repariert repariert     | person | akk device vehicle opening
clean, cleaned         | putzen putzt geputzt               | person | akk vessel opening surface
wash, washed           | waschen wäscht gewaschen           | person | akk clothing vehicle fruit
wear, wore             | tragen trägt getragen              | person | akk clothing
forget, forgot         | vergessen vergisst vergessen       | person | akk ITEM !
lose, lost             | verlieren verliert verloren        | person | akk thing clothing !
visit, visited         | besuchen besucht besucht           | person | akk person building
know, knew             | kennen kennt gekannt               | person | akk person TEXT building !
love, loved            | lieben liebt geliebt               | BEING  | akk BEING !
hear, heard            | hören hört gehört                  | BEING  | akk person vehicle !
understand, understood | verstehen versteht verstanden      | person | akk person TEXT !
greet, greeted         | grüßen grüßt gegrüßt               | person | akk person
feed, fed              | füttern füttert gefüttert          | person | akk animal
watch, watched         | beobachten beobachtet beobachtet   | BEING  | akk BEING
have, had              | haben hat gehabt                   | person | akk ITEM animal vehicle !
open, opened           | auf-machen macht aufgemacht        | person | akk opening
close, closed          | zu-machen macht zugemacht          | person | akk opening
turn on, turned        | ein-schalten schaltet eingeschaltet | person | akk device
turn off, turned       | aus-schalten schaltet ausgeschaltet | person | akk device
put on, put            | an-ziehen zieht angezogen          | person | akk clothing
try on, tried          | an-probieren probiert anprobiert   | person | akk clothing
take off, took         | aus-ziehen zieht ausgezogen        | person | akk clothing
bring along, brought   | mit-bringen bringt mitgebracht     | person | akk cake drink thing text
call, called           | an-rufen ruft angerufen            | person | akk person
pick up, picked        | ab-holen holt abgeholt             | person | akk person
invite, invited        | ein-laden lädt eingeladen          | person | akk person
look at, looked        | an-sehen sieht angesehen           | BEING  | akk BEING thing
help, helped           | helfen hilft geholfen              | person | dat person
thank, thanked         | danken dankt gedankt               | person | dat person
answer, answered       | antworten antwortet geantwortet    | person | dat person
follow, followed       | folgen folgt gefolgt sein          | BEING  | dat BEING
trust, trusted         | vertrauen vertraut vertraut        | BEING  | dat person !
listen to, listened    | zu-hören hört zugehört             | person | dat person
give, gave             | geben gibt gegeben                 | person | dat person, akk ITEM fruit
show, showed           | zeigen zeigt gezeigt               | person | dat person, akk SHOWN animal
send, sent             | schicken schickt geschickt         | person | dat person, akk text thing
lend, lent             | leihen leiht geliehen              | person | dat person, akk SHOWN vehicle
tell, told             | erzählen erzählt erzählt           | person | dat person, akk tale
wait, waited           | warten wartet gewartet             | person | for auf akk person vehicle
think, thought         | denken denkt gedacht               | person | of an akk BEING place
talk, talked           | sprechen spricht gesprochen        | person | about über akk BEING TEXT
talk, talked           | sprechen spricht gesprochen        | person | with mit dat person
laugh, laughed         | lachen lacht gelacht               | person | at über akk person TEXT ;
dream, dreamed         | träumen träumt geträumt            | BEING  | of von dat BEING
dance, danced          | tanzen tanzt getanzt               | person | with mit dat person ;
play, played           | spielen spielt gespielt            | BEING  | with mit dat animal ;
work, worked           | arbeiten arbeitet gearbeitet       | person | with mit dat person ;
sleep, slept           | schlafen schläft geschlafen        | BEING  |
sing, sang             | singen singt gesungen              | person |
cry, cried             | weinen weint geweint               | person |
swim, swam             | schwimmen schwimmt geschwommen sein | BEING  |
get up, got            | auf-stehen steht aufgestanden sein | BEING  |
wake up, woke          | auf-wachen wacht aufgewacht sein   | BEING  |
arrive, arrived        | an-kommen kommt angekommen sein    | person vehicle |
go, went               | gehen geht gegangen sein           | person | GOAL
run, ran               | laufen läuft gelaufen sein         | BEING  | GOAL
drive, drove           | fahren fährt gefahren sein         | person | to zu dat building
come, came             | kommen kommt gekommen sein         | BEING  | out of aus dat building
sit, sat               | sitzen sitzt gesessen              | BEING  | SPOT dat
stand, stood           | stehen steht gestanden             | BEING  | SPOT dat
lie, lay               | liegen liegt gelegen               | animal TEXT | SPOT dat
put, put               | legen legt gelegt                  | person | akk TEXT clothing, SPOT akk
place, placed          | stellen stellt gestellt            | person | akk vessel, SPOT akk
"""

# English German | comparatives or - | classes
ADJECTIVES = """
old alt                 | older älter                  | ANY clothing device opening place
young jung              | younger jünger               | BEING
big groß                | bigger größer                | ANY opening place fruit
small klein             | smaller kleiner              | ANY opening place fruit cake
friendly freundlich     | friendlier freundlicher      | BEING
tired müde              | -                            | BEING
happy glücklich         | happier glücklicher          | person
hungry hungrig          | -                            | BEING
famous berühmt          | -                            | person text building
clever klug             | -                            | BEING
strong stark            | stronger stärker             | BEING
new neu                 | newer neuer                  | ITEM surface opening vehicle building
expensive teuer         | more_expensive teurer        | WARES
cheap billig            | cheaper billiger             | WARES
beautiful schön         | more_beautiful schöner       | WARES building place
heavy schwer            | heavier schwerer             | thing device surface
modern modern           | -                            | device surface vehicle building
red rot                 | -                            | WARES opening
blue blau               | -                            | WARES opening
green grün              | -                            | WARES opening
fresh frisch            | -                            | fruit dish cake
cold kalt               | colder kälter                | dish drink
hot heiß                | hotter heißer                | dish drink
sweet süß               | sweeter süßer                | fruit cake
interesting interessant | more_interesting interessanter | text reading
boring langweilig       | more_boring langweiliger     | text reading
long lang               | longer länger                | text
short kurz              | shorter kürzer               | text
"""
# Stems of adjectives whose stem differs from the adjective.
ADJECTIVE_STEMS = {"müde": "müd", "teuer": "teur"}

# Modals: English auxiliary or semi-auxiliary -> (German singular, German plural).
MODALS = {
    "will": ("wird", "werden"),
    "can": ("kann", "können"),
    "could": ("konnte", "konnten"),
    "should": ("sollte", "sollten"),
    "may": ("darf", "dürfen"),
    "want to": ("will", "wollen"),
    "have to": ("muss", "müssen"),
}

SUBORDINATORS = (
    Text("because", "weil"),
    Text("although", "obwohl"),
    Text("if", "wenn"),
    Text("while", "während"),
    Text("before", "bevor"),
)
REPORTING = (
    Text("says", "sagt"),
    Text("knows", "weiß"),
    Text("believes", "glaubt"),
    Text("hopes", "hofft"),
    Text("thinks", "denkt"),
    Text("claims", "behauptet"),
)
FREQUENCIES = (
    Text("often", "oft"),
    Text("always", "immer"),
    Text("never", "nie"),
    Text("sometimes", "manchmal"),
    Text("seldom", "selten"),
)
# Times, for any tense, for the past and for the future.
TIMES = (
    Text("today", "heute"),
    Text("in the morning", "am Morgen"),
    Text("in the evening", "am Abend"),
    Text("in summer", "im Sommer"),
    Text("in winter", "im Winter"),
    Text("on Monday", "am Montag"),
    Text("on Tuesday", "am Dienstag"),
    Text("on Wednesday", "am Mittwoch"),
    Text("on Thursday", "am Donnerstag"),
    Text("on Friday", "am Freitag"),
    Text("on Saturday", "am Samstag"),
    Text("on Sunday", "am Sonntag"),
)
PAST_TIMES = (
    Text("yesterday", "gestern"),
    Text("last week", "letzte Woche"),
    Text("last year", "letztes Jahr"),
)
FUTURE_TIMES = (
    Text("tomorrow", "morgen"),
    Text("next week", "nächste Woche"),
    Text("next year", "nächstes Jahr"),
)
