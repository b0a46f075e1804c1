"""Every message of the API, declared once: the requests of clients and the answers of the daemon.

:mod:`connmgr.contract.message` says how a message is declared; the other modules have the messages, by endpoint group.
The daemon derives its marshmallow schemas from them (:mod:`connmgr.api.schema`), the client reads and writes them.
"""
