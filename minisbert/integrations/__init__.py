"""minisbert's encoders in the form that other libraries take, one file per library, named after it.

Each file imports its library, so import only the one that you need: ``from minisbert.integrations.langchain import
MinisbertEmbeddings``. ``docs/use-it-in.md`` has ten lines for each. Imports the rooms up to ``loading``.
"""
