"""The Capsule Explainer: a page where a person draws a digit and watches it being routed. The network runs in the page.

    flashcaps demo                         # with the small models of the package
    flashcaps demo runs/tiny-0             # and with your own
    flashcaps demo --build site            # a folder for any static host

network.py says what of a model the page's engine runs (page/engine), facts.py what is known of it beforehand, build.py
writes the folder, serve.py serves it to this machine.
"""
