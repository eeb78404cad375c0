"""Shards of pictures, for tests."""

import io
import tarfile


def write_tar(path, files):
    """Write the bytes of files by name into a tar file."""
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def samples_of(folder):
    """Return the pictures of an image folder and their classes as WebDataset names them, in order."""
    files = {}
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        files[f"{number:06d}.png"] = path.read_bytes()
        files[f"{number:06d}.cls"] = path.parent.name.encode()
    return files
