"""Multi30k (Elliott et al. 2016): downloaded with checksums, or read from a folder.

It may be used for research and education only, not commercially: its sentences describe Flickr
images, and the terms of Flickr30k apply.
"""

import gzip
import hashlib
import http.client
import urllib.request
import zlib
from pathlib import Path

from t2t.data.corpus import Corpus, DataError, TextCorpus
from t2t.data.parts import Part, Source
from t2t.storage.atomic_files import explain_write_errors, write_file
from t2t.storage.paths import make_path

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_LANGUAGES = ("en", "de", "fr")
_STEMS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
SPLITS = tuple(_STEMS)
CHECKSUMS = {  # SHA-256 of the text, because a .gz contains its time stamp
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}


def open_multi30k(part: Part, split: str) -> Corpus:
    """Opens a split; downloads its files if they are missing and `data.directory` is empty.

    Raises:
        DataError: a file is missing or invalid.
    """
    given = part.config.directory
    folder = make_path(given) if given else part.cache / "multi30k"
    files = []
    for language in part.languages:
        name = f"{_STEMS[split]}.{language}"
        found = [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]
        if not found and given:
            raise DataError(
                f"data.directory={given!r} holds neither {name} nor {name}.gz; name the "
                "folder that does, or leave data.directory empty to download Multi30k"
            )
        files.append(found[0] if found else _download(name, folder))
    src, tgt = files
    return TextCorpus(src, tgt, part.facts)


def _download(name: str, folder: Path) -> Path:
    url = f"{URL}/{name}.gz"
    by_hand = f"put {name}.gz into {folder} by hand, or name its folder in data.directory"
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            packed = response.read()
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise DataError(f"{url} cannot be downloaded: {error}; {by_hand}") from None
    try:
        checksum = hashlib.sha256(gzip.decompress(packed)).hexdigest()
    except (OSError, EOFError, zlib.error):
        checksum = "unknown, because it is not a complete gzip file,"
    if checksum != CHECKSUMS[name]:
        raise DataError(
            f"{url} is not the expected file: SHA-256 of the text is {checksum} instead of "
            f"{CHECKSUMS[name]}; {by_hand}"
        )
    path = folder / f"{name}.gz"
    with explain_write_errors(DataError, path, "data.cache_directory sets the folder"):
        write_file(path, packed)
    return path


SOURCE = Source(lambda _: SPLITS, open_multi30k, languages=_LANGUAGES)
