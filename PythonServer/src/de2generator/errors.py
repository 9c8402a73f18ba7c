"""Errors that are the client's fault."""


class BadRequestError(Exception):
    """The request is wrong: answered with 400 and this text."""
