"""How messages travel: codec, frames and mailboxes."""
