"""Every message of the API, declared once: what clients send, what the daemon answers.

:mod:`connmgr.contract.message` says how a message is declared; the other modules have the messages, by endpoint group.
The daemon derives its marshmallow schemas from them (:mod:`connmgr.api.schema`), the client reads and writes them.
"""
