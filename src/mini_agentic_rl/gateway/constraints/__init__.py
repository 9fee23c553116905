"""Structured answers: the form of an answer as a grammar, and the grammar as a constraint on tokens (llguidance).

rules.py           the form that a request demands, in llguidance's dialect of Lark
compiler.py        `ConstraintCompiler`: tries a form in another process, compiles it in this one, and keeps it
grammar.py         a compiled grammar and its state in one answer
trial_worker.py    the process that tries grammars; of the gateway it imports only `grammar.py`
"""
