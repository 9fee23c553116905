from stats import median


def test_of_an_odd_number():
    assert median([3, 1, 2]) == 2
