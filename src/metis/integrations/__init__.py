"""Other frameworks that call models through metis: LangChain, pydantic-ai and `llm`.

Each module needs its package, which an extra installs: `metis-llm[langchain]`, `[pydantic-ai]` and
`[llm]`. The framework keeps its own history and runs its own tools; metis resolves the model,
translates, retries and prices. Responses carry their canonical message, so that thinking and its
signatures go back to the provider that issued them.
"""
