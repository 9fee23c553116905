"""Answers of a given form: the form of a request as a grammar, and the grammar as a limit on tokens (llguidance).

rules.py           the form that a request asks for, in llguidance's dialect of Lark
compiler.py        `ConstraintCompiler`: tries a form in another process, compiles it in this one, and keeps it
grammar.py         a compiled grammar, and how it follows one continuation
trial.py           the process that tries grammars, as its asker sees it
trial_worker.py    that process: it imports no more of the gateway than `grammar.py`
"""
