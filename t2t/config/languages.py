"""Language codes: one form for all of them, and what the measures need to know of a language."""

import dataclasses
import re

from t2t.config.fields import DataConfig

# ISO 639-1: the codes of ISO 639-2 and 639-3, then those of languages that ISO 639-3 lists under it
# (Mandarin and Cantonese are Chinese) as far as FLORES-200 has them.
_CODES = """
    aa=aar ab=abk ae=ave af=afr ak=aka am=amh an=arg
    ar=ara,arb,arz,ary,acm,acq,aeb,afb,ajp,apc,apd,ars as=asm av=ava ay=aym,ayr az=aze,azj,azb
    ba=bak be=bel bg=bul bi=bis bm=bam bn=ben bo=bod,tib br=bre bs=bos ca=cat ce=che ch=cha
    co=cos cr=cre cs=ces,cze cu=chu cv=chv cy=cym,wel da=dan de=deu,ger dv=div dz=dzo ee=ewe
    el=ell,gre en=eng eo=epo es=spa et=est,ekk eu=eus,baq fa=fas,per,pes,prs ff=ful,fuv fi=fin
    fj=fij fo=fao fr=fra,fre fy=fry ga=gle gd=gla gl=glg gn=grn,gug gu=guj gv=glv ha=hau
    he=heb hi=hin ho=hmo hr=hrv ht=hat hu=hun hy=hye,arm hz=her ia=ina id=ind ie=ile ig=ibo
    ii=iii ik=ipk io=ido is=isl,ice it=ita iu=iku ja=jpn jv=jav ka=kat,geo kg=kon ki=kik
    kj=kua kk=kaz kl=kal km=khm kn=kan ko=kor kr=kau ks=kas ku=kur,kmr kv=kom kw=cor ky=kir
    la=lat lb=ltz lg=lug li=lim ln=lin lo=lao lt=lit lu=lub lv=lav,lvs mg=mlg,plt mh=mah
    mi=mri,mao mk=mkd,mac ml=mal mn=mon,khk mr=mar ms=msa,may,zsm mt=mlt my=mya,bur na=nau
    nb=nob nd=nde ne=nep,npi ng=ndo nl=nld,dut nn=nno no=nor nr=nbl nv=nav ny=nya oc=oci
    oj=oji om=orm,gaz or=ori,ory os=oss pa=pan pi=pli pl=pol ps=pus,pbt pt=por qu=que,quy
    rm=roh rn=run ro=ron,rum ru=rus rw=kin sa=san sc=srd sd=snd se=sme sg=sag sh=hbs si=sin
    sk=slk,slo sl=slv sm=smo sn=sna so=som sq=sqi,alb,als sr=srp ss=ssw st=sot su=sun sv=swe
    sw=swa,swh ta=tam te=tel tg=tgk th=tha ti=tir tk=tuk tl=tgl,fil tn=tsn to=ton tr=tur
    ts=tso tt=tat tw=twi ty=tah ug=uig uk=ukr ur=urd uz=uzb,uzn ve=ven vi=vie vo=vol wa=wln
    wo=wol xh=xho yi=yid,ydd yo=yor za=zha zh=zho,chi,cmn,yue,wuu,hak,nan,hsn,gan,lzh,cdo,cjy
    zu=zul
"""
_TWO_LETTERS = {
    long: short
    for short, _, listed in (entry.partition("=") for entry in _CODES.split())
    for long in (short, *listed.split(","))
}
# Chinese, Japanese, Thai, Lao, Burmese, Khmer, Tibetan and Dzongkha write no spaces between words.
_WITHOUT_SPACES = {"zh", "ja", "th", "lo", "my", "km", "bo", "dz"}
OWN_TOKENIZERS = {"zh", "ja", "ko"}  # languages for which sacreBLEU's BLEU has a tokeniser
_SCRIPTS_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
_ENGLISH_TO_GERMAN = {"phrasebook", "multi30k", "tfds"}  # sources that have it by default


def normalize_language(code: str) -> str:
    """Returns the ISO 639-1 code of a language: "de" for "DE", "deu", "ger", "de-DE" and "de_AT".

    "zho_Hans" and "cmn" are "zh", as are other languages that ISO 639-3 counts as Chinese. A
    language without a two-letter code keeps its three letters; what is no code is "".
    """
    first = re.split("[-_]", code.strip().lower())[0]
    return _TWO_LETTERS.get(first, first if re.fullmatch("[a-z]{3}", first) else "")


def writes_spaces(code: str) -> bool:
    """Returns whether a language separates words by spaces; an unknown one counts as one."""
    return normalize_language(code) not in _WITHOUT_SPACES


def is_text_without_spaces(text: str) -> bool:
    """Returns whether at least three in ten letters are of scripts that write no spaces."""
    letters = sum(map(str.isalpha, text))
    return letters > 0 and len(_SCRIPTS_WITHOUT_SPACES.findall(text)) >= 0.3 * letters


def fill_languages(data: DataConfig) -> DataConfig:
    """Returns the config with the languages that its sources have where it names none.

    The text of files has no default: its languages stay empty.
    """
    if not _ENGLISH_TO_GERMAN & {*data.source.split("+")}:
        return data
    src, tgt = data.src_language or "en", data.tgt_language or "de"
    return dataclasses.replace(data, src_language=src, tgt_language=tgt)
