"""What the ``data`` of a Stable-Baselines3 zip says about its policy, with its pickles read as data."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import Any

from quarl.convert.importers.chain import Activate, ForeignError
from quarl.convert.importers.pickles.arrays import mapping, number, refusal, sequence, whole_number
from quarl.convert.importers.pickles.nodes import Call, Node, Symbol, describe_node, printable
from quarl.convert.importers.pickles.spaces import Space, read_space
from quarl.convert.importers.pickles.tree import read_pickle
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.spec import MOST_UNITS, Activation

_SB3 = "stable_baselines3"
_RECURRENT, _MASKABLE = (f"sb3_contrib.common.{part}.policies" for part in ("recurrent", "maskable"))
# (module, class): (family, name that users give, algorithm where the class decides it)
_POLICIES = {
    (f"{module}.policies", name): (family, public, algorithm)
    for module, family, algorithm, names in (
        (f"{_SB3}.common", "actor-critic", "", "ActorCriticPolicy ActorCriticCnnPolicy MultiInputActorCriticPolicy"),
        (f"{_SB3}.sac", "sac", "SAC", "SACPolicy CnnPolicy MultiInputPolicy"),
        (f"{_SB3}.td3", "td3", "TD3", "TD3Policy CnnPolicy MultiInputPolicy"),
        (f"{_SB3}.dqn", "dqn", "DQN", "DQNPolicy CnnPolicy MultiInputPolicy"),
        ("sb3_contrib.qrdqn", "qrdqn", "QRDQN", "QRDQNPolicy CnnPolicy MultiInputPolicy"),
        ("sb3_contrib.tqc", "sac", "TQC", "TQCPolicy CnnPolicy MultiInputPolicy"),
        ("sb3_contrib.crossq", "sac", "CrossQ", "CrossQPolicy"),
        ("sb3_contrib.ars", "ars", "ARS", "ARSPolicy"),
    )
    for public, name in zip(("MlpPolicy", "CnnPolicy", "MultiInputPolicy"), names.split(), strict=False)
} | {
    ("sb3_contrib.ars.policies", "ARSLinearPolicy"): ("ars", "LinearPolicy", "ARS"),
    (_RECURRENT, "RecurrentActorCriticPolicy"): ("actor-critic", "MlpLstmPolicy", "RecurrentPPO"),
    (_RECURRENT, "RecurrentMultiInputActorCriticPolicy"): ("actor-critic", "MultiInputLstmPolicy", "RecurrentPPO"),
    (_MASKABLE, "MaskableActorCriticPolicy"): ("actor-critic", "MlpPolicy", "MaskablePPO"),
    (_MASKABLE, "MaskableActorCriticCnnPolicy"): ("actor-critic", "CnnPolicy", "MaskablePPO"),
    (_MASKABLE, "MaskableMultiInputActorCriticPolicy"): ("actor-critic", "MultiInputPolicy", "MaskablePPO"),
}
_EXTRACTORS = ["CombinedExtractor", "FlattenExtractor", "NatureCNN"]
_EXTRACTOR_KEYWORDS = ["cnn_output_dim", "features_dim", "normalized_image"]
# What only one algorithm's constructor takes.
_OWN = {
    "RecurrentPPO": {"lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm", "lstm_kwargs"},
    "QRDQN": {"n_quantiles"},
    "TQC": {"n_quantiles"},
    "ARS": {"with_bias"},
    "CrossQ": {"batch_norm", "batch_norm_eps", "batch_norm_momentum", "renorm_warmup_steps"},
}
_ACTIVATIONS = {name: kind for kind, each in NONLINEARITIES.items() for name in each.torch_names}
_TORCH = ("torch.nn.modules.activation", "torch.nn.modules.linear", "torch.nn.modules")
# What the policy's constructor takes and the deterministic action does not depend on.
_WITHOUT_EFFECT = {
    *("ortho_init", "log_std_init", "full_std", "use_expln", "share_features_extractor", "n_critics"),
    *("optimizer_class", "optimizer_kwargs", "adam_epsilon", "sde_net_arch", "device"),  # some before version 1
}
_KNOWN = {
    *("net_arch", "activation_fn", "use_sde", "squash_output", "clip_mean", "normalize_images"),
    *("features_extractor_class", "features_extractor_kwargs"),
}
DEFAULT_CLIP_MEAN = 2.0  # sac/policies.py
DEFAULT_LSTM_UNITS, DEFAULT_LSTM_LAYERS, MOST_LSTM_LAYERS = 256, 1, 16  # the first two: RecurrentActorCriticPolicy
DEFAULT_QUANTILES, DEFAULT_NORM_EPSILON = 200, 0.001  # qrdqn/policies.py and crossq/policies.py


@dataclass(frozen=True)
class Settings:
    """The settings that decide the deterministic action.

    Attributes:
        algorithm: e.g. ``"PPO"``.
        family: ``"actor-critic"`` (PPO, A2C, TRPO), ``"sac"`` (TQC and CrossQ, too), ``"td3"`` (DDPG, too),
            ``"dqn"``, ``"qrdqn"`` or ``"ars"``.
        policy: ``"MlpPolicy"``, ``"CnnPolicy"`` or ``"MultiInputPolicy"``; of RecurrentPPO ``"MlpLstmPolicy"`` or
            ``"MultiInputLstmPolicy"``; of ARS ``"LinearPolicy"``, too.
        extractor: ``"FlattenExtractor"``, ``"NatureCNN"`` or ``"CombinedExtractor"``.
        normalized_image: the extractor takes any three dimensions for an image.
        widths: of the actor's hidden layers; None where the program's default was left.
        uses_gsde: exploration noise that depends on the state.
        squashes: tanh behind the actor, and its ±1 are the action space's bounds.
        clip_mean: SAC with gSDE cuts the mean to ± this.
        lstm: units of each LSTM layer between features and hidden layers; none of a policy that forgets.
        quantiles: outputs of each action, of which the mean counts.
        has_bias: whether the Linear layers have biases.
        norm_epsilon: of the batch normalisation in front of each Linear layer, or None without one.
    """

    algorithm: str
    family: str
    policy: str
    observation: Space
    action: Space
    extractor: str
    normalized_image: bool
    normalizes_images: bool
    activation: Activate
    widths: tuple[int, ...] | None
    uses_gsde: bool
    squashes: bool
    clip_mean: float
    num_timesteps: int | None
    seed: int | None
    lstm: tuple[int, ...] = ()
    quantiles: int = 1
    has_bias: bool = True
    norm_epsilon: float | None = None


def read_settings(text: bytes, what: str) -> Settings:
    """Return the settings in the member ``data``.

    Raises:
        ForeignError: it is damaged, or names a class, an activation or a setting that is not read.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal(f"{what}'s data", "is not JSON") from error
    if not isinstance(data, dict):
        raise refusal(f"{what}'s data", "must be a JSON object")
    family, policy, algorithm = _policy(data)
    keywords = _policy_keywords(data)
    known = _KNOWN | _WITHOUT_EFFECT | _OWN.get(algorithm, set())
    for name in keywords:
        if name not in known:
            raise _unknown("policy_kwargs", str(name), sorted(known))
    extractor, normalized_image = _extractor(policy, keywords)
    gsde = _flag(keywords, "use_sde", _flag(data, "use_sde", False))
    is_normed = algorithm == "CrossQ" and _flag(keywords, "batch_norm", True)
    return Settings(
        _algorithm(data, algorithm, keywords),
        family,
        policy,
        read_space(_unpack_entry(data, "observation_space"), "the observation space"),
        read_space(_unpack_entry(data, "action_space"), "the action space"),
        extractor,
        normalized_image,
        _flag(keywords, "normalize_images", True),
        _activation(keywords.get("activation_fn"), family),
        _widths(keywords.get("net_arch"), family),
        gsde,
        family in ("sac", "td3") or _flag(keywords, "squash_output", (family, policy) == ("ars", "MlpPolicy")),
        float(number(keywords.get("clip_mean", DEFAULT_CLIP_MEAN), "clip_mean")),
        _whole_or_none(data.get("num_timesteps")),
        _whole_or_none(data.get("seed")),
        _lstm(keywords) if "Lstm" in policy else (),
        whole_number(keywords.get("n_quantiles", DEFAULT_QUANTILES), "n_quantiles") if family == "qrdqn" else 1,
        _flag(keywords, "with_bias", policy != "LinearPolicy"),
        float(number(keywords.get("batch_norm_eps", DEFAULT_NORM_EPSILON), "batch_norm_eps")) if is_normed else None,
    )


def _unpack_entry(data: dict[str, Any], name: str) -> Node:
    """Return an entry of the data: JSON, or the tree of the pickle that it holds."""
    if name not in data:
        raise refusal("the zip's data", f"has no {name}")
    entry = data[name]
    if not isinstance(entry, dict) or ":serialized:" not in entry:
        return entry
    text = entry[":serialized:"]
    try:
        stream = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except ValueError as error:
        raise refusal(f"{name} of the zip's data", "must be base64 text") from error
    return read_pickle(stream, f"{name} of the zip's data")


def _policy(data: dict[str, Any]) -> tuple[str, str, str]:
    node = _unpack_entry(data, "policy_class")
    if isinstance(node, Symbol) and (node.module, node.name) in _POLICIES:
        return _POLICIES[node.module, node.name]
    raise ForeignError(
        f"The policy class {describe_node(node)} is not supported.",
        "Export it to ONNX. Supported are Stable-Baselines3's PPO, A2C, DQN, SAC, TD3 and DDPG, and sb3-contrib's "
        "RecurrentPPO (without images), MaskablePPO, TRPO, QRDQN, TQC, CrossQ and ARS.",
    )


def _policy_keywords(data: dict[str, Any]) -> dict[str | int, Node]:
    try:
        return mapping(_unpack_entry(data, "policy_kwargs"), "policy_kwargs")
    except ForeignError as error:
        entry = data.get("policy_kwargs")
        texts = {key: text for key, text in entry.items() if isinstance(text, str)} if isinstance(entry, dict) else {}
        words = ", ".join(f"{printable(key)}: {printable(text)}" for key, text in texts.items() if key[:1] != ":")
        raise ForeignError(f"{error} ({words})" if words else str(error), error.next_step) from error


def _algorithm(data: dict[str, Any], of_class: str, given: dict[str | int, Node]) -> str:
    """Return the zip does not name it; each algorithm has a policy class or settings that no other has."""
    if of_class == "TD3" and given.get("n_critics") == 1 and data.get("policy_delay") == 1:
        return "DDPG"  # TD3 with one critic and without its tricks
    if of_class:
        return of_class
    if "cg_max_steps" in data:
        return "TRPO"
    return "PPO" if "n_epochs" in data else "A2C"


def _unknown(where: str, name: str, known: list[str]) -> ForeignError:
    return ForeignError(
        f"{where} must have only {', '.join(known)}, got {printable(name)}.",
        "Train without it, or export the actor to ONNX.",
    )


def _extractor(policy: str, given: dict[str | int, Node]) -> tuple[str, bool]:
    name = "NatureCNN" if "Cnn" in policy else "CombinedExtractor" if "MultiInput" in policy else "FlattenExtractor"
    node = given.get("features_extractor_class")
    if node is not None:
        name = node.name if isinstance(node, Symbol) and node.module == f"{_SB3}.common.torch_layers" else ""
        if name not in _EXTRACTORS:
            raise _unknown("policy_kwargs", f"the features extractor {describe_node(node)}", _EXTRACTORS)
    keywords = given.get("features_extractor_kwargs")
    entries = {} if keywords is None else mapping(keywords, "features_extractor_kwargs")
    for key in entries:
        if key not in _EXTRACTOR_KEYWORDS:
            raise _unknown("features_extractor_kwargs", str(key), _EXTRACTOR_KEYWORDS)
    return name, _flag(entries, "normalized_image", False)


def _lstm(given: dict[str | int, Node]) -> tuple[int, ...]:
    """Units of each layer, of which PyTorch's LSTM has as many as it is told, all alike."""
    keywords = given.get("lstm_kwargs")
    for key in {} if keywords is None else mapping(keywords, "lstm_kwargs"):
        if key != "dropout":  # which only training has
            raise _unknown("lstm_kwargs", str(key), ["dropout"])
    units, layers = (
        whole_number(given.get(name, default), name)
        for name, default in (("lstm_hidden_size", DEFAULT_LSTM_UNITS), ("n_lstm_layers", DEFAULT_LSTM_LAYERS))
    )
    if not 0 < units <= MOST_UNITS or not 0 < layers <= MOST_LSTM_LAYERS:
        raise ForeignError(
            f"The policy must have 1 … {MOST_LSTM_LAYERS} LSTM layers of 1 … {MOST_UNITS} units, "
            f"got {layers} layers of {units} units.",
            "Train it with a smaller lstm_hidden_size or n_lstm_layers.",
        )
    return (units,) * layers


def _flag(entries: Any, name: str, default: bool) -> bool:
    value = entries.get(name, default)
    if not isinstance(value, bool):
        raise refusal(f"{name} of the zip's data", "must be true or false")
    return value


def _whole_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _activation(node: Node, family: str) -> Activate:
    if node is None:
        return Activate(Activation.TANH if family == "actor-critic" else Activation.RELU)
    slope = 0.01  # LeakyReLU's own
    if isinstance(node, Call) and node.calls(("functools",), "partial"):
        state = sequence(node.state, "activation_fn")
        inner = node.arguments[0] if node.arguments else None
        if len(state) < 3 or not isinstance(inner, Symbol) or (state[1] != () and state[1] is not None):
            raise _unknown(
                "policy_kwargs", f"the activation {describe_node(inner)} with arguments", sorted(_ACTIVATIONS)
            )
        for key, value in mapping(state[2] or {}, "activation_fn").items():
            if key == "negative_slope" and inner.name == "LeakyReLU":
                slope = float(number(value, "negative_slope"))
            elif key != "inplace" and not (key == "alpha" and inner.name == "ELU" and number(value, "alpha") == 1):
                raise _unknown("policy_kwargs", f"{inner.name} with {key}", sorted(_ACTIVATIONS))
        node = inner
    if not isinstance(node, Symbol) or node.module not in _TORCH or node.name not in _ACTIVATIONS:
        raise _unknown("policy_kwargs", f"the activation {describe_node(node)}", sorted(_ACTIVATIONS))
    if not math.isfinite(slope):
        raise refusal("negative_slope", f"must be finite, got {slope}")
    return Activate(_ACTIVATIONS[node.name], slope)


def _widths(node: Node, family: str) -> tuple[int, ...] | None:
    """Return the actor's hidden layers: a list, a dictionary with ``pi``, or a list that ends with it (before SB3
    2)."""
    if node is None:
        return None
    if isinstance(node, dict):
        if family in ("dqn", "qrdqn") or (family != "actor-critic" and "pi" not in node):
            raise refusal("net_arch", "has no actor layers")
        node = node.get("pi", [])
    items = sequence(node, "net_arch")
    if family == "actor-critic" and items and isinstance(items[-1], dict):  # behind layers that the critic shares
        items = [*items[:-1], *sequence(items[-1].get("pi", []), "net_arch")]
    return tuple(whole_number(width, "net_arch") for width in items)
