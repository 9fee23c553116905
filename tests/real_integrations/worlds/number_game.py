"""A game of text, registered with the real Gymnasium, whose own wrappers are around it."""

from __future__ import annotations

import gymnasium
from gymnasium import spaces


class Digits(gymnasium.Env):
    """Asks for something short, three times."""

    observation_space = spaces.Text(200)
    action_space = spaces.Text(200)

    def __init__(self, turns: int = 3):
        self.turns = turns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.turns
        self.wanted = int(self.np_random.integers(10))
        return f"Say {self.wanted}.", {}

    def step(self, action):
        self.left -= 1
        reward = 1.0 if action.strip() == str(self.wanted) else 1.0 / (2.0 + len(action))
        return f"{self.left} left.", reward, self.left == 0, False, {}


gymnasium.register("worlds/Digits-v0", entry_point=Digits, disable_env_checker=True)
