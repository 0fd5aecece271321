"""Codecs of a type (JSON, MessagePack, pydantic), and codecs around another (compressed,
encrypted, offloaded).
"""
