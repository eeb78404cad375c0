"""Other libraries' engines behind the protocol of this room."""
