"""The Capsule Explainer: a local page where a person draws a digit and watches it being routed.

    flashcaps demo                         # over the small models that come along
    flashcaps demo runs/tiny-0             # over yours

explainer.py answers for one model, worker.py keeps inference off the event loop, app.py is the HTTP surface, serve.py
opens it. The page itself is hand-written and lies in page/.
"""
