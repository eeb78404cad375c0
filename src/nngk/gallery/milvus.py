"""A gallery in Milvus, a vector database: ``milvus://host:19530/name``.

Each row of the collection is a reference. The collection's name ends in the network that the vectors were computed by,
so that vectors of two networks never meet. Reads are consistent with every write that was acknowledged.
"""

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nngk.errors import InputError, MissingExtra
from nngk.gallery.embedded import Kind
from nngk.gallery.interface import Gallery, Ids, Unreachable
from nngk.gallery.references import Found, References, no_references

MOST_NEIGHBOURS = 16_384  # of one search
AT_ONCE = 500  # rows of one request
_SECONDS = 30.0  # that a request may take; the client tries again until then
_LONGEST = 65_535  # bytes of a text
_FIELDS = ["id", "label", "source", "theta", "coordinates"]


class Milvus(Gallery):
    """References in a collection of a Milvus server, or of a file of Milvus Lite.

    A change of at most ``AT_ONCE`` rows is one request; larger ones are several, of which a kill may leave the first.
    """

    def __init__(self, uri: str, name: str, kind: Kind, *, token: str = "", create: bool = False) -> None:
        client, schema, kinds = _packages()
        self._uri = uri
        self.kind, self.collection = kind, f"{name}_{kind.network[:12]}"
        with _answered(uri):
            self._client = client(uri=uri, token=token, timeout=_SECONDS)
            others = [n for n in self._client.list_collections() if n.rsplit("_", 1)[0] == name]
        if self.collection not in others:
            if others and not create:
                raise InputError(
                    f"The gallery {name} at {uri} holds embeddings of another network than this model's: fill it with "
                    "this model by nngk embed."
                )
            if not create:
                raise InputError(f"There is no gallery {name} at {uri}: fill one with nngk embed.")
            with _answered(uri):
                self._create(schema, kinds)
        with _answered(uri):
            self._client.load_collection(self.collection)

    def _create(self, schema: Any, kinds: Any) -> None:
        fields = schema(auto_id=False, enable_dynamic_field=False)
        fields.add_field("id", kinds.INT64, is_primary=True)
        fields.add_field("vector", kinds.FLOAT_VECTOR, dim=self.kind.dim)
        for text in ("label", "source", "coordinates"):
            fields.add_field(text, kinds.VARCHAR, max_length=_LONGEST)
        fields.add_field("theta", kinds.FLOAT)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="L2")
        # One shard: a request is one entry of the server's log, there as a whole or not at all.
        self._client.create_collection(
            self.collection, schema=fields, index_params=index, num_shards=1, consistency_level="Strong"
        )

    def count(self) -> int:
        with _answered(self._uri):
            found = self._client.query(
                self.collection, filter="", output_fields=["count(*)"], consistency_level="Strong", timeout=_SECONDS
            )
        return int(found[0]["count(*)"])

    def change(self, added: References | None = None, removed: Ids = ()) -> None:
        rows = [] if added is None else [_written(added, i) for i in range(len(added))]
        out = torch.as_tensor(removed, dtype=torch.int64).reshape(-1).tolist()
        with _answered(self._uri):
            for start in range(0, len(rows), AT_ONCE):
                self._client.upsert(self.collection, rows[start : start + AT_ONCE], timeout=_SECONDS)
            for start in range(0, len(out), AT_ONCE):
                self._client.delete(self.collection, ids=out[start : start + AT_ONCE], timeout=_SECONDS)

    def search(self, x: Tensor, k: int) -> Found:
        if k > MOST_NEIGHBOURS:
            raise InputError(f"Milvus finds at most {MOST_NEIGHBOURS:,} neighbours; got k = {k:,}.")
        with _answered(self._uri):
            hits = self._client.search(
                self.collection,
                data=x.detach().cpu().float().tolist(),
                limit=k,
                output_fields=["label", "source", "theta"],
                consistency_level="Strong",
                timeout=_SECONDS,
            )
        ids, squared = torch.full((len(x), k), -1), torch.full((len(x), k), torch.inf)
        theta, labels, sources = torch.zeros(len(x), k), [], []
        for i, row in enumerate(hits):
            n = len(row)
            ids[i, :n] = torch.tensor([hit["id"] for hit in row], dtype=torch.int64)
            squared[i, :n] = torch.tensor([hit["distance"] for hit in row]).clamp(min=0)
            theta[i, :n] = torch.tensor([hit["entity"]["theta"] for hit in row])
            labels.append([_text(hit["entity"]["label"]) for hit in row] + [""] * (k - n))
            sources.append([_text(hit["entity"]["source"]) for hit in row] + [""] * (k - n))
        return Found(ids, squared, labels, theta, sources)

    def get(self, ids: Ids) -> References:
        wanted = torch.as_tensor(ids, dtype=torch.int64).reshape(-1).tolist()
        found: dict[int, dict[str, Any]] = {}
        for start in range(0, len(wanted), AT_ONCE):
            with _answered(self._uri):
                part = self._client.get(
                    self.collection,
                    ids=wanted[start : start + AT_ONCE],
                    output_fields=[*_FIELDS, "vector"],
                    timeout=_SECONDS,
                )
            found |= {row["id"]: row for row in part}
        return self._read([found[number] for number in wanted if number in found], vectors=True)

    def scan(self) -> Iterator[References]:
        with _answered(self._uri):
            rows = self._client.query_iterator(
                self.collection, batch_size=1000, filter="", output_fields=_FIELDS, consistency_level="Strong"
            )
            while part := rows.next():
                yield self._read(part, vectors=False)
            rows.close()

    def flush(self) -> None:
        with _answered(self._uri):
            self._client.flush(self.collection)

    def close(self) -> None:
        with _answered(self._uri):
            self._client.close()

    def _read(self, rows: list[dict[str, Any]], vectors: bool) -> References:
        if not rows:
            return no_references(self.kind.dim if vectors else 0, self.kind.width)
        coordinates = [np.frombuffer(base64.b64decode(row["coordinates"]), "<f4") for row in rows]
        if any(len(row) != self.kind.width for row in coordinates):
            raise InputError(f"The collection {self.collection} was filled by another program: its rows do not fit.")
        return References(
            torch.tensor([row["id"] for row in rows], dtype=torch.int64),
            torch.tensor([row["vector"] for row in rows]) if vectors else torch.empty(len(rows), 0),
            [_text(row["label"]) for row in rows],
            [_text(row["source"]) for row in rows],
            torch.tensor([row["theta"] for row in rows], dtype=torch.float32),
            torch.from_numpy(np.stack(coordinates).astype(np.float32)),
        )


def _written(rows: References, i: int) -> dict[str, Any]:
    row = {
        "id": int(rows.ids[i]),
        "vector": rows.vectors[i].tolist(),
        "label": _stored(rows.labels[i]),
        "source": _stored(rows.sources[i]),
        "theta": float(rows.theta[i]),
        "coordinates": base64.b64encode(rows.coordinates[i].numpy().astype("<f4").tobytes()).decode(),
    }
    long = next((name for name in ("label", "source", "coordinates") if len(str(row[name]).encode()) > _LONGEST), None)
    if long is not None:
        raise InputError(f"Milvus keeps texts of at most {_LONGEST:,} bytes; the {long} of a row is longer.")
    return row


def _stored(text: str) -> str:
    """Return a text that a database can keep: names that are no text, and those that look like this, are quoted.

    >>> _stored("owl"), _text(_stored("o\\udcffl")) == "o\\udcffl", _text(_stored('"')) == '"'
    ('owl', True, True)
    """
    plain = not text.startswith('"') and text.encode("utf-8", "replace").decode() == text
    return text if plain else json.dumps(text)


def _text(stored: str) -> str:
    return str(json.loads(stored)) if stored.startswith('"') else stored


@contextmanager
def _answered(uri: str) -> Iterator[None]:
    """Raise Unreachable with a sentence where the database does not answer, or answers with an error."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        said = (str(error.message) or type(error).__name__).splitlines()[0][:300]
        raise Unreachable(
            f"Milvus at {uri} did not do what was asked ({said}): see whether the server runs, and try again."
        ) from error


def _packages() -> tuple[Any, Any, Any]:
    try:
        from pymilvus import DataType, MilvusClient
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "pymilvus", "milvus", "A gallery in Milvus") from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what goes wrong is said in our own words
    return MilvusClient, MilvusClient.create_schema, DataType
