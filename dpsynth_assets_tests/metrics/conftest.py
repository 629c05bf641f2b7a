import pytest

from dpsynth_assets.models.text_embedder import TextEmbedder


@pytest.fixture(scope="session")
def embedder():
    return TextEmbedder()


@pytest.fixture(scope="session")
def rides(embedder):
    texts = [f"The ferry to harbour {n} left {n % 7} minutes late again." for n in range(60)]
    return texts, embedder.embed(texts)


@pytest.fixture(scope="session")
def cakes(embedder):
    texts = [f"Recipe {n}: fold {n % 5} eggs into the sweet almond dough." for n in range(60)]
    return texts, embedder.embed(texts)
