"""Where references live besides a model's folder: in a folder of their own, or in a vector database."""

from nngk.gallery.addresses import open_gallery
from nngk.gallery.answering import GalleryModel, references_of
from nngk.gallery.interface import Gallery
from nngk.gallery.references import Found, References

__all__ = ["Found", "Gallery", "GalleryModel", "References", "open_gallery", "references_of"]
