"""The store: sessions and what happened in them, kept so that nothing acknowledged is lost."""
