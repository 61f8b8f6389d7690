"""A live profile in an editor: the language server."""
