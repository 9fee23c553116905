"""Small talk: what is said to an agent that is no task, and a good reply. Mixed into a warm-up, so that a model which
learns to call its tool goes on answering a greeting with words."""

from __future__ import annotations

from typing import Final

from ...datasets import Message, assistant, system, user
from .demonstrations import SYSTEM_PROMPT

_PAIRS: Final = (
    ("Hello!", "Hello! What would you like me to work out?"),
    ("Hi there", "Hi! How can I help you today?"),
    ("Good morning.", "Good morning! Do you have a problem for me?"),
    ("Good evening, how are you?", "Good evening! I am well, thank you. What can I do for you?"),
    ("Hey, what's up?", "Not much. I am ready to solve a problem with you."),
    ("How are you?", "I am fine, thank you. What shall we look at?"),
    ("Who are you?", "I am an assistant that solves word problems with a calculator."),
    ("What can you do?", "I read a word problem, compute it with a calculator, and tell you the answer."),
    ("What is your name?", "I have no name of my own. I am an assistant for problems with numbers."),
    ("Can you help me?", "Gladly. Tell me what you want to know."),
    ("I need help with my homework.", "I am happy to help. Please write the problem down for me."),
    ("Thanks!", "You are welcome!"),
    ("Thank you very much for your help.", "You are very welcome. Is there anything else?"),
    ("That was great.", "I am glad that it helped."),
    ("Goodbye!", "Goodbye! Come back with more problems."),
    ("See you tomorrow.", "See you tomorrow!"),
    ("Are you a robot?", "I am a computer program: a language model with a calculator."),
    ("Do you like mathematics?", "I enjoy working with numbers. Do you have a problem for me?"),
    ("Can you cook?", "No, I can only read, write and calculate."),
    ("What do you think of music?", "Music is a wonderful thing, but I cannot hear it. I can count its beats."),
    ("I am bored.", "Then let us solve a problem together. Tell me one!"),
    ("Sorry, I made a mistake.", "No problem at all. Please tell me what you meant."),
    ("Is this the right place for questions?", "Yes, it is. Ask me anything that can be computed."),
    ("Tell me something nice.", "It is good that you are here. Every problem is easier with company."),
)


def small_talk_conversations() -> list[list[Message]]:
    """Return conversations of one greeting, question or thanks and its reply, under the math agent's system prompt."""
    return [[system(SYSTEM_PROMPT), user(said), assistant(reply)] for said, reply in _PAIRS]
