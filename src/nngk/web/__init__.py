"""A model behind HTTP: a service for programs and a page for people.

The packages of this room are optional (``pip install 'nngk[serve]'``); only the command line imports it,
when it serves.
"""
