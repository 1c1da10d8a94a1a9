"""The Capsule Explainer: a local page where a person draws a digit and watches it being routed.

    flashcaps demo                         # with the small models of the package
    flashcaps demo runs/tiny-0             # with your own

explainer.py explains one model, worker.py keeps inference off the event loop, app.py is the HTTP interface, serve.py
starts it. The page itself is in page/.
"""
