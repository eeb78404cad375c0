"""Which gallery an address means: a folder, or a collection of a Milvus server."""

import hashlib
import json
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from nngk.errors import InputError
from nngk.files import digest_of
from nngk.gallery.embedded import Embedded, Kind
from nngk.gallery.interface import Gallery
from nngk.gallery.milvus import Milvus
from nngk.model import Model

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


def open_gallery(address: str, model: Model, *, write: bool = False, engine: str = "exact") -> Gallery:
    """Return the gallery at an address for the embeddings of a model; ``write`` makes it where there is none.

    ``engine`` searches a gallery of this machine: 'exact', or 'auto' for a graph past the size where it pays.
    A Milvus server that wants a token finds it in the environment variable NNGK_MILVUS_TOKEN.
    """
    kind = kind_of(model)
    if "://" not in address:
        return Embedded(Path(address), kind, write=write, engine=engine)
    where, name = parsed(address)
    return Milvus(where, name, kind, token=os.environ.get("NNGK_MILVUS_TOKEN", ""), create=write)


def parsed(address: str) -> tuple[str, str]:
    """Return where the server of an address is, and the name of the gallery there.

    A path in place of a host, as in ``milvus:///home/me/file.db/name``, is a file of Milvus Lite.

    >>> parsed("milvus://localhost:19530/birds"), parsed("milvus:///data/lite.db/birds")
    (('http://localhost:19530', 'birds'), ('/data/lite.db', 'birds'))
    """
    try:
        parts = urlsplit(address)
        possible = parts.port != 0  # a number that is no port raises, as does a bracket without its other half
    except ValueError:
        parts, possible = urlsplit(""), False
    place, _, name = parts.path.rpartition("/")
    secure = parts.scheme == "milvuss"
    fits = parts.scheme in ("milvus", "milvuss") and _NAME.fullmatch(name) and bool(parts.netloc) != bool(place)
    if not (fits and possible) or parts.query or parts.fragment or "@" in parts.netloc:
        raise InputError(
            f"A gallery is a folder, or milvus://host:port/name with a name of letters, digits and _ (milvuss:// for "
            f"TLS); got {address!r}."
        )
    return (f"{'https' if secure else 'http'}://{parts.netloc}" if parts.netloc else place), name


def kind_of(model: Model) -> Kind:
    """Return what the references of a model have in common: their sizes, and the network that computed them."""
    space, coordinates = model.familiar.space, model.classes.coordinates
    tensors = dict(model.network.state_dict())
    if space is not None:
        tensors |= {"space.directions": space.directions, "space.origin": space.origin}
        tensors |= {} if space.plain is None else {"space.plain": space.plain}
    said = digest_of({name: t.detach().cpu() for name, t in tensors.items()})
    digest = hashlib.sha256((said + json.dumps(model.network.config["input"], sort_keys=True)).encode()).hexdigest()
    return Kind(model.network.dim, 0 if coordinates is None else coordinates.shape[1], digest)
