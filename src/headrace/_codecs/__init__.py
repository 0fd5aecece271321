"""Codecs: of a type (JSON, MessagePack, pydantic), and around another (compressed, encrypted, offloaded)."""
