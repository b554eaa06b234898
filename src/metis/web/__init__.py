"""The web viewer: conversations, requests as providers receive them, losses and cost."""
