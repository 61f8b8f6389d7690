"""The sixteen models are those of the publications: layers, parameters, shapes of inputs."""

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.suite.registry import MODELS, models_of  # noqa: E402
from tests.offenders import every  # noqa: E402


def built(name, **options):
    with torch.device("meta"):
        return MODELS[name].workload(**options).build()


def classes_of(module):
    return Counter(type(part).__name__ for part in module.modules())


def test_there_are_sixteen():
    assert list(MODELS) == [
        "resnet50", "inception_v3", "seq2seq", "transformer", "faster_rcnn", "mask_rcnn", "efficientdet_d0",
        "deep_speech_2", "wgan_gp", "a3c", "minigo", "bert_base", "bert_large", "ncf", "decoder", "diffusion_unet",
    ]  # fmt: skip


@pytest.mark.slow
@every("name", MODELS)
def test_parameters_and_layers_are_the_published_ones(name):
    model, module = MODELS[name], built(name)
    parameters = sum(p.numel() for p in module.parameters())
    assert parameters == model.parameters
    if model.parameters_published:
        assert abs(parameters / model.parameters_published - 1) <= (0.006 if name == "efficientdet_d0" else 0)
    counts = classes_of(module)
    assert {kind: counts[kind] for kind in model.layers} == dict(model.layers)


@pytest.mark.slow
@every("name", MODELS)
def test_the_reduced_size_has_the_same_layers(name):
    full, small = classes_of(built(name)), classes_of(built(name, reduced=True))
    assert full == small


def test_minigo_has_38_convolutions_in_its_tower():
    tower = built("minigo").tower
    assert classes_of(tower)["Conv2d"] == 38
    assert {tuple(c.weight.shape) for c in tower.modules() if isinstance(c, torch.nn.Conv2d)} == {(256, 256, 3, 3)}


def test_generator_and_critic_have_14_layers_each():
    networks = built("wgan_gp")
    for network in (networks.generator, networks.critic):
        counts = classes_of(network)
        assert counts["Conv2d"] + counts["Linear"] == 14
    assert (classes_of(networks.generator)["Up"], classes_of(networks.critic)["Down"]) == (4, 4)


def test_the_transformer_has_twelve_layers_of_attention_and_a_vocabulary_of_17188():
    transformer, translator = built("transformer"), built("seq2seq")
    assert len(transformer.encoder) + len(transformer.decoder) == 12
    assert transformer.words.num_embeddings == translator.classifier.out_features == 17_188


@every("layers", [5, 7])
def test_deep_speech_has_five_or_seven_recurrent_layers(layers):
    counts = classes_of(built("deep_speech_2", recurrent_layers=layers))
    assert (counts["Conv2d"], counts["RNN"]) == (2, layers)


def test_the_decoder_shares_keys_and_values_among_heads():
    attention = built("decoder").blocks[0].attention
    assert (attention.q.out_features, attention.k.out_features, attention.shared) == (576, 192, 3)


def test_sentences_have_20_to_30_words_padded_to_30():
    source, target = MODELS["seq2seq"].workload().inputs(64)
    lengths = (source > 0).sum(1)
    assert source.shape == (64, 30) and target.shape == (64, 31)
    assert lengths.min() >= 20 and lengths.max() <= 30 and len(set(lengths.tolist())) > 3
    assert source.max() < 17_188 and all((row[:n] > 0).all() for row, n in zip(source, lengths, strict=True))


SHAPES = {
    "resnet50": [(2, 3, 256, 256), (2,)],
    "inception_v3": [(2, 3, 299, 299), (2,)],
    "faster_rcnn": [(2, 3, 352, 500), (2, 8, 4), (2, 8)],
    "mask_rcnn": [(2, 3, 800, 1344), (2, 8, 4), (2, 8), (2, 8, 800, 1344)],
    "efficientdet_d0": [(2, 3, 512, 512), (2, 8, 4), (2, 8)],
    "deep_speech_2": [(2, 1, 161, 1269), (2, 177)],
    "wgan_gp": [(2, 5, 3, 64, 64)],
    "a3c": [(2, 4, 84, 84), (2,), (2,)],
    "minigo": [(2, 17, 19, 19), (2, 362), (2,)],
    "bert_base": [(2, 384), (2, 384), (2,), (2,)],
    "ncf": [(2,), (2,), (2,)],
    "decoder": [(2, 1025)],
    "diffusion_unet": [(2, 3, 32, 32), (2,), (2, 3, 32, 32)],
}


@pytest.mark.slow
@every("name", SHAPES)
def test_inputs_have_the_shapes_of_the_data_set(name):
    assert [tuple(t.shape) for t in MODELS[name].workload().inputs(2)] == SHAPES[name]


def test_units_of_throughput():
    units = {name: model.workload().units_per_sample for name, model in MODELS.items()}
    assert {name: count for name, count in units.items() if count != 1} == {
        "deep_speech_2": 12.69, "wgan_gp": 5, "decoder": 1024
    }  # fmt: skip
    assert MODELS["deep_speech_2"].unit == "seconds of audio" and MODELS["decoder"].unit == "tokens"


def test_a_wrong_name_is_told_the_nearest_one():
    with pytest.raises(
        roller.RollerError, match=r"expected one of resnet50, .*, got 'resnet5'; did you mean 'resnet50'"
    ):
        models_of(["resnet5"])


def test_a_wrong_option_is_refused():
    with pytest.raises(roller.RollerError, match="suite: resnet50: expected options it has, got"):
        MODELS["resnet50"].workload(recurrent_layers=7)
