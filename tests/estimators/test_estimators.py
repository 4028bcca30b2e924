import copy
import pickle
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from setwise import DeepSets, SetBatch, SetClassifier, SetRegressor, Sets, importance, load
from setwise.inspection.set_graph import NearUniformGraph
from setwise.tasks import Binary, Classes, Count, Labels, Regression

SMALL = {"layers": (32, 16), "hidden": (16, 16), "lr": 0.01, "random_state": 0}


def bags(
    count: int = 60, width: int = 2, seed: int = 0, classes: int = 2
) -> tuple[list[np.ndarray], np.ndarray]:
    """Sets of 2 to 9 elements around 0, or around another centre for each further class."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    return [rng.normal(3.0 * c, 1, size=(rng.integers(2, 10), width)) for c in y], y


X, Y = bags()
CLASSIFIER = SetClassifier(max_epochs=8, **SMALL)


@pytest.fixture(scope="module")
def clf() -> SetClassifier:
    return clone(CLASSIFIER).fit(X, np.array(["no", "yes"])[Y])


def test_without_scikit_learn_it_says_what_is_missing():
    code = "import sys; sys.modules['sklearn'] = None\nimport setwise\nsetwise.SetClassifier"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "ModuleNotFoundError: the estimators need scikit-learn: pip install 'setwise[sklearn]'" in done.stderr
    )


def expected_to_fail(estimator: object) -> dict[str, str]:
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "training goes by random mini-batches, which repeating a set changes, as in scikit-learn's own "
            "SGD and MLP estimators"
        )
    }


@parametrize_with_checks(
    [SetClassifier(max_epochs=2), SetRegressor(max_epochs=2)], expected_failed_checks=expected_to_fail
)
def test_scikit_learn_agrees(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke them, and look at those they care for
        check(estimator)


def test_two_classes(clf):
    assert clf.score(X, np.array(["no", "yes"])[Y]) > 0.95
    assert clf.classes_.tolist() == ["no", "yes"]
    assert isinstance(clf.task_, Binary)
    odds, shares = clf.decision_function(X), clf.predict_proba(X)
    assert odds.shape == (60,)
    np.testing.assert_allclose(shares[:, 1], 1 / (1 + np.exp(-odds)))
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_array_equal(clf.predict(X), clf.classes_[shares.argmax(1)])
    np.testing.assert_array_equal(clf.decide(shares), clf.predict(X))
    assert clf.n_iter_ == len(clf.history_) == 8
    assert clf.history_[-1]["loss"] < clf.history_[0]["loss"]
    assert clf.n_features_in_ == 2


def test_many_classes():
    sets, y = bags(90, classes=3)
    clf = clone(CLASSIFIER).fit(sets, y + 5)
    assert isinstance(clf.task_, Classes)
    assert clf.score(sets, y + 5) > 0.9
    logits, shares = clf.decision_function(sets), clf.predict_proba(sets)
    np.testing.assert_allclose(shares, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_array_equal(clf.predict(sets), 5 + logits.argmax(1))


def test_several_labels():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=(80, 3))
    sets = [rng.normal(2.5 * labels, 1, size=(6, 3)) for labels in y]
    clf = SetClassifier(max_epochs=20, **SMALL).fit(sets, y)
    assert isinstance(clf.task_, Labels)
    assert clf.classes_.tolist() == [0, 1, 2]
    shares = clf.predict_proba(sets)
    assert shares.shape == (80, 3)
    np.testing.assert_array_equal(clf.predict(sets), shares > 0.5)
    np.testing.assert_array_equal(clf.decide(shares), clf.predict(sets))
    assert (clf.predict(sets) == y).mean() > 0.9
    heavy = SetClassifier(max_epochs=5, class_weight="balanced", **SMALL).fit(sets, y)
    assert heavy.predict_proba(sets).shape == (80, 3)
    assert clf.element_importance(sets[0], output=2).shape == (6,)


def test_real_targets_keep_their_units():
    sets, y = [1e4 + 100 * x for x in X], np.array([1e6 + 5e3 * x.mean() for x in X])
    reg = SetRegressor(max_epochs=30, **SMALL).fit(sets, y)
    assert isinstance(reg.task_, Regression)
    assert reg.score(sets, y) > 0.9
    assert abs(reg.predict(sets).mean() - y.mean()) < 0.3 * y.std()


def test_several_real_targets():
    y = np.array([[x.mean(), -3 * x.mean()] for x in X])
    reg = SetRegressor(max_epochs=30, **SMALL).fit(X, y)
    assert reg.predict(X).shape == (60, 2)
    assert reg.score(X, y) > 0.9
    with pytest.raises(ValueError, match=r"y must have 2 targets per set .* got shape \[60\]"):
        reg.partial_fit(X, y[:, 0])


def test_counts_are_means_of_poisson():
    y = np.array([len(x) for x in X])
    reg = SetRegressor(loss="poisson", pool="sum", max_epochs=45, **SMALL).fit(X, y)
    assert isinstance(reg.task_, Count)
    assert (reg.predict(X) > 0).all()
    assert reg.score(X, y) > 0.5
    thousands = SetRegressor(loss="poisson", max_epochs=1, **SMALL).fit(X, 1000 * y)
    assert 1000 < thousands.predict(X).mean() < 20_000  # it starts from the mean count
    for wrong in (-y, np.stack([y, y], axis=1)):
        with pytest.raises(ValueError, match="one count per set, 0 or more, got"):
            reg.fit(X, wrong)


def test_all_forms_of_the_same_sets_are_predicted_alike(clf):
    expected = clf.predict_proba(X)
    values, ptr = np.concatenate(X), np.cumsum([0, *map(len, X)])
    batch = SetBatch.pack([torch.tensor(x) for x in X])
    padded = np.where(batch.mask[..., None], batch.x, np.nan)
    for form in ((values, ptr), batch, (padded, batch.mask.numpy()), Sets.of(X), np.array(X, dtype=object)):
        np.testing.assert_allclose(clf.predict_proba(form), expected, rtol=1e-9, atol=1e-12)
    single = clf.predict_proba([x.astype(np.float32) for x in X])
    np.testing.assert_allclose(single, expected, atol=1e-5)
    assert not np.array_equal(single, expected)


def test_order_and_company_do_not_matter(clf):
    expected = clf.decision_function(X)
    turned = clf.decision_function([x[::-1] for x in X])
    alone = np.concatenate([clf.decision_function([x]) for x in X])
    np.testing.assert_allclose(turned, expected, rtol=1e-9)
    np.testing.assert_allclose(alone, expected, rtol=1e-9)


def test_features_are_standardised_over_all_elements():
    grown = [np.array([1.7e9, -4.0]) + np.array([1e-2, 1e6]) * x for x in X]
    clf = clone(CLASSIFIER).fit(grown, Y)
    plain = clone(CLASSIFIER).fit(X, Y)
    np.testing.assert_allclose(clf.predict_proba(grown), plain.predict_proba(X), atol=1e-3)
    values = np.concatenate(grown)
    np.testing.assert_allclose(clf.module_.inputs.mean, values.mean(0))
    raw = clone(CLASSIFIER).set_params(standardize=False).fit(X, Y)
    assert raw.module_.inputs.mean.tolist() == [0, 0]
    assert raw.module_.inputs.std.tolist() == [1, 1]


def test_data_frames_name_the_features(clf):
    frames = [pd.DataFrame(x, columns=["size", "age"]) for x in X]
    named = clone(CLASSIFIER).fit(frames, Y)
    assert named.feature_names_in_.tolist() == ["size", "age"]
    np.testing.assert_array_equal(named.predict(X), clf.predict(X) == "yes")
    with pytest.raises(ValueError, match="column 0 of the sets must be 'size' as in fit, got 'age'"):
        named.predict([frame[["age", "size"]] for frame in frames])
    assert not hasattr(named.fit(X, Y), "feature_names_in_")


def test_a_table_is_sets_of_numbers():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(80, 6)) * np.where(np.arange(80) % 2, 3, 1)[:, None]
    y = np.arange(80) % 2
    clf = clone(CLASSIFIER).fit(table, y)
    assert clf.score(table, y) > 0.8
    assert clf.n_features_in_ == 6
    np.testing.assert_allclose(clf.predict_proba(rng.permuted(table, axis=1)), clf.predict_proba(table))
    rows = [row.reshape(-1, 1) for row in table]
    np.testing.assert_allclose(clf.predict_proba(rows), clf.predict_proba(table))  # of any size
    assert len(clf.latent_graph(table[1])) == 6
    ragged = clone(CLASSIFIER).fit(rows, y)
    np.testing.assert_allclose(
        ragged.predict_proba(table[:, :4]), ragged.predict_proba([r[:4] for r in rows])
    )


def test_the_same_seed_gives_the_same_estimator_and_leaves_the_global_one_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = SetClassifier(max_epochs=2, dropout=0.5, **SMALL).fit(X, Y).decision_function(X)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(
        SetClassifier(max_epochs=2, dropout=0.5, **SMALL).fit(X, Y).decision_function(X), first
    )
    other = SetClassifier(max_epochs=2, dropout=0.5, **SMALL | {"random_state": 1}).fit(X, Y)
    assert not np.array_equal(other.decision_function(X), first)


def test_weights_say_how_much_a_set_counts():
    sets, y = [X[0]] * 40, np.arange(40) % 2  # nothing to learn but how often

    def share(**options):
        weight = options.pop("sample_weight", None)
        clf = SetClassifier(max_epochs=30, **SMALL, **options).fit(sets, y, sample_weight=weight)
        return clf.predict_proba(sets[:1])[0, 1]

    assert abs(share() - 0.5) < 0.1
    assert abs(share(sample_weight=np.where(y, 9.0, 1.0)) - 0.9) < 0.1
    assert abs(share(class_weight={0: 3, 1: 1}) - 0.25) < 0.1
    sets, y = [X[0]] * 40, (np.arange(40) < 8).astype(int)
    assert abs(share() - 0.2) < 0.1
    assert abs(share(class_weight="balanced") - 0.5) < 0.1
    with pytest.raises(ValueError, match="must contain at least one non-zero"):
        clone(CLASSIFIER).fit(sets, y, sample_weight=np.zeros(40))


def test_early_stopping_keeps_the_best_network():
    rng = np.random.default_rng(0)
    sets, y = [rng.normal(size=(5, 40)) for _ in range(60)], np.arange(60) % 2  # nothing to learn
    options = {"early_stopping": True, "validation_fraction": 0.3, "n_iter_no_change": 3}
    clf = SetClassifier(max_epochs=60, dropout=0, **options, **SMALL).fit(sets, y)
    losses = [entry["validation_loss"] for entry in clf.history_]
    assert clf.n_iter_ == len(losses) < 60
    lowest = np.minimum.accumulate([np.inf, *losses])[:-1]
    progress = np.flatnonzero(np.array(losses) < lowest - 1e-4)
    assert progress[-1] == len(losses) - 4
    assert {"validation_accuracy", "validation_auc"} <= set(clf.history_[0])
    shorter = SetClassifier(max_epochs=60, dropout=0, **options, **SMALL).fit(sets, y)
    np.testing.assert_array_equal(shorter.decision_function(sets), clf.decision_function(sets))
    with pytest.raises(
        ValueError, match=r"early_stopping needs at least one set for training .* got n_samples=1"
    ):
        SetRegressor(**options, **SMALL).fit(sets[:1], [1.0])


def test_early_stopping_deals_classes_in_proportion():
    clf = SetClassifier(max_epochs=1, early_stopping=True, validation_fraction=0.2, **SMALL)
    y = (np.arange(60) < 15).astype(int)
    clf.fit(X, y)
    train, watched = clf._split(60, torch.tensor(y), 0)
    assert y[watched].sum() == 3
    assert sorted([*train, *watched]) == list(range(60))
    rare = (np.arange(60) < 1).astype(int)  # cannot be in both parts
    assert clf.fit(X, rare).n_iter_ == 1


def test_warm_start_goes_on_and_a_plain_start_does_not():
    clf = clone(CLASSIFIER).set_params(warm_start=True, max_epochs=3)
    first = clf.fit(X, Y).history_[-1]["loss"]
    start = clf.decision_function(X)
    assert clf.fit(X, Y).n_iter_ == 6
    assert not np.array_equal(clf.decision_function(X), start)
    assert [entry["step"] for entry in clf.history_] == sorted({entry["step"] for entry in clf.history_})
    assert clf.history_[-1]["loss"] < first
    assert clf.set_params(warm_start=False).fit(X, Y).n_iter_ == 3
    np.testing.assert_array_equal(clf.decision_function(X), start)
    with pytest.raises(ValueError, match="must be among 0, 1, got 7"):
        clf.set_params(warm_start=True).fit(X, np.where(Y, 7, 0))


def test_partial_fit_goes_on_with_its_optimiser():
    clf = clone(CLASSIFIER)
    for _ in range(15):
        clf.partial_fit(X[:30], Y[:30], classes=[0, 1]).partial_fit(X[30:], Y[30:])
    assert clf.n_iter_ == 30
    assert clf.score(X, Y) > 0.9
    steps = {int(state["step"]) for state in clf._optimizer.state.values()}
    assert steps == {int(clf.history_[-1]["step"])}
    late = clone(CLASSIFIER).partial_fit(X[:4], [0] * 4, classes=["a", 0, 1][1:])
    assert late.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="classes must be the same as in the first call, 0, 1, got 0, 1, 2"):
        late.partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="must be among 0, 1, got 2"):
        late.partial_fit(X[:2], [2, 0])
    with pytest.raises(ValueError, match="expected at least two classes, got 1 class: 0"):
        clone(CLASSIFIER).partial_fit(X[:2], [0, 0])
    reg = SetRegressor(**SMALL)
    for _ in range(30):
        reg.partial_fit(X, [x.mean() for x in X])
    assert reg.score(X, [x.mean() for x in X]) > 0.8


def test_fit_after_partial_fit_begins_anew():
    clf = clone(CLASSIFIER).partial_fit(X, Y)
    np.testing.assert_array_equal(
        clf.fit(X, Y).decision_function(X), clone(CLASSIFIER).fit(X, Y).decision_function(X)
    )


def test_a_fit_that_fails_leaves_what_was_learned():
    clf = clone(CLASSIFIER).set_params(max_epochs=2).fit(X, Y)
    expected = clf.predict_proba(X)
    for sets, y in ((bags(width=5)[0], Y[:-1]), (X, np.zeros(60)), ([X[0], np.ones((2, 7))], [0, 1])):
        with pytest.raises(ValueError, match=r"one target for each|two classes|7 features"):
            clf.fit(sets, y)
        np.testing.assert_array_equal(clf.predict_proba(X), expected)


def test_going_on_that_fails_leaves_the_weights_that_were_there():
    for warm in (True, False):
        clf = clone(CLASSIFIER).set_params(warm_start=warm, max_epochs=2).fit(X, Y)
        expected = clf.predict_proba(X)
        with pytest.raises(ValueError, match="training SetClassifier failed"):
            (clf.set_params(lr=1e30).fit if warm else clf.set_params(lr=1e30).partial_fit)(X * 20, [*Y] * 20)
        np.testing.assert_array_equal(clf.predict_proba(X), expected)


def test_a_network_that_goes_on_keeps_its_parts_and_a_file_has_those_it_was_built_with(tmp_path):
    clf = clone(CLASSIFIER).set_params(max_epochs=1).fit(X, Y)
    expected = clf.predict_proba(X)
    clf.set_params(pool="max", layers=(8,)).save(tmp_path / "model.safetensors")
    other = load(tmp_path / "model.safetensors")
    assert (other.pool, other.layers) == ("mean", (32, 16))
    np.testing.assert_array_equal(other.predict_proba(X), expected)
    with pytest.raises(ValueError, match=r"pool cannot change .* expected 'mean.*got 'max'"):
        clf.set_params(layers=(32, 16)).partial_fit(X, Y)
    with pytest.raises(ValueError, match="layers cannot change"):
        clf.set_params(warm_start=True, pool="mean", layers=(8,)).fit(X, Y)


def test_large_targets_keep_their_digits_whatever_the_precision_of_the_sets():
    y = 1.7e9 + np.array([x.mean() for x in X])
    reg = SetRegressor(max_epochs=20, **SMALL).fit(X, y)
    single = reg.predict([x.astype(np.float32) for x in X])
    assert single.dtype == np.float64
    np.testing.assert_allclose(single - 1.7e9, reg.predict(X) - 1.7e9, atol=1e-3)
    assert reg.score([x.astype(np.float32) for x in X], y) > 0.9


def test_raw_units_are_left_alone():
    sets = [100 + 20 * c + x for x, c in zip(X, Y, strict=True)]
    clf = clone(CLASSIFIER).set_params(standardize=False, max_epochs=1).fit(sets, Y)
    assert "CompressOutliers" not in str(clf.module_)
    assert "CompressOutliers" in str(clone(CLASSIFIER).set_params(max_epochs=1).fit(sets, Y).module_)


def test_large_sets_may_be_thinned_in_training():
    sets = [np.repeat(x, 50, axis=0) for x in X]
    clf = clone(CLASSIFIER).set_params(max_elements=8).fit(sets, Y)
    assert clf.score(sets, Y) > 0.9


def test_any_network_can_be_trained():
    def network(in_dim, out_dim):
        return DeepSets.build(in_dim, out_dim, dim=8, depth=1)

    clf = clone(CLASSIFIER).set_params(network=network, max_epochs=16).fit(X, Y)
    assert isinstance(clf.module_.network, DeepSets)
    assert clf.score(X, Y) > 0.9
    assert clf.element_importance(X[0]).shape == (len(X[0]),)
    with pytest.raises(TypeError, match="latent_graph needs a network of type DMPS, got DeepSets"):
        clf.latent_graph(X[0])
    wider = clone(clf).set_params(network=lambda i, o: network(i, o + 1))
    with pytest.raises(ValueError, match=r"outputs of shape \[\d+, 1\], got \[\d+, 2\]"):
        wider.fit(X, Y)
    with pytest.raises(TypeError, match=r"network must return a module that takes"):
        clone(clf).set_params(network=torch.nn.Linear).fit(X, Y)
    with pytest.raises(TypeError, match="network must return a torch module with parameters, got NoneType"):
        clf.set_params(network=lambda i, o: None).fit(X, Y)


def test_a_network_of_ones_own_keeps_the_weights_it_brings():
    def network(in_dim, out_dim):
        made = DeepSets.build(in_dim, out_dim, dim=8, depth=1)
        made.encoder.requires_grad_(False)
        torch.nn.init.constant_(made.encoder.layers[0].linear.weight, 7.0)
        return made

    def own(seed):
        return clone(CLASSIFIER).set_params(network=network, max_epochs=1, random_state=seed).fit(X, Y)

    assert (own(0).module_.network.encoder.layers[0].linear.weight == 7).all()
    np.testing.assert_array_equal(own(0).decision_function(X), own(0).decision_function(X))
    assert not np.array_equal(own(0).decision_function(X), own(1).decision_function(X))


def test_progress_is_shown_when_asked_for(capsys):
    clone(CLASSIFIER).set_params(max_epochs=2, verbose=True).fit(X, Y)
    shown = capsys.readouterr().err
    assert "SetClassifier" in shown
    clone(CLASSIFIER).set_params(max_epochs=2, verbose="fold 3").fit(X, Y)
    assert "fold 3" in capsys.readouterr().err
    assert "loss" in shown
    clone(CLASSIFIER).set_params(max_epochs=2).fit(X, Y)
    assert capsys.readouterr().err == ""


def test_it_can_be_cloned_copied_and_pickled(clf, tmp_path):
    expected = clf.predict_proba(X)
    joblib.dump(clf, tmp_path / "clf.joblib")
    for other in (copy.deepcopy(clf), pickle.loads(pickle.dumps(clf)), joblib.load(tmp_path / "clf.joblib")):
        np.testing.assert_array_equal(other.predict_proba(X), expected)
    with pytest.raises(NotFittedError):
        clone(clf).predict(X)
    going = clone(CLASSIFIER).partial_fit(X, Y)
    twin = pickle.loads(pickle.dumps(going))
    np.testing.assert_array_equal(
        twin.partial_fit(X, Y).decision_function(X), going.partial_fit(X, Y).decision_function(X)
    )


def test_scikit_learn_searches_splits_and_calibrates():
    groups = np.arange(60) // 6
    small = clone(CLASSIFIER).set_params(max_epochs=5)
    scores = cross_val_score(small, X, Y, groups=groups, cv=GroupKFold(3), n_jobs=2)
    assert scores.mean() > 0.85
    alike = cross_val_score(small, Sets.of(X), Y, groups=groups, cv=GroupKFold(3))
    np.testing.assert_array_equal(scores, alike)
    grid = GridSearchCV(small, {"pool": ["mean", "max"]}, cv=2, n_jobs=1).fit(X, Y)
    assert grid.best_params_["pool"] in ("mean", "max")
    assert grid.predict(X[:3]).shape == (3,)
    doubled = make_pipeline(FunctionTransformer(lambda sets: [2 * x for x in sets]), small)
    assert doubled.fit(X, Y).score(X, Y) > 0.85
    calibrated = CalibratedClassifierCV(small, cv=2, method="sigmoid").fit(X, Y)
    assert roc_auc_score(Y, calibrated.predict_proba(X)[:, 1]) > 0.9
    assert cross_val_predict(small, X, Y, cv=2, method="predict_proba").shape == (60, 2)


def test_a_search_goes_to_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    small = clone(CLASSIFIER).set_params(max_epochs=4)
    search = GridSearchCV(small, {"depth": [0, 1]}, cv=2)
    expected = search.fit(X, Y).cv_results_["mean_test_score"]
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config("dask", wait_for_workers_timeout=60),
    ):
        warnings.simplefilter("ignore")
        found = search.fit(X, Y).cv_results_["mean_test_score"]
        workers = client.run(lambda: __import__("sys").modules.get("setwise") is not None)
    np.testing.assert_allclose(found, expected)
    assert any(workers.values())  # it was they who did the work


def test_the_graph_can_be_looked_at(clf):
    x = X[1]
    graph = clf.latent_graph(x)
    inside = clf.module_.standardized(torch.tensor(x)).unsqueeze(0)
    network = clf.module_.network.eval()
    with torch.no_grad():
        np.testing.assert_allclose(graph.weights, network.latent_graph(inside)[0], rtol=1e-5)
        np.testing.assert_allclose(graph.energies, network.dirichlet_energies(inside)[0], rtol=1e-4)
    np.testing.assert_array_equal(graph.points, x)
    assert clf.latent_graph(torch.tensor(x)).weights.shape == graph.weights.shape
    with pytest.raises(ValueError, match="set 0 has elements of 3 features, expected 2 as in fit"):
        clf.latent_graph(np.ones((4, 3)))
    with pytest.raises(ValueError, match="x must be one set, got 60"):
        clf.latent_graph(Sets.of(X))


def test_a_graph_that_relates_nothing_is_warned_of():
    clf = clone(CLASSIFIER).set_params(graph="uniform", max_epochs=1).fit(X, Y)
    with pytest.warns(NearUniformGraph, match="near uniform") as caught:
        clf.latent_graph(X[0])
    assert caught[0].filename == __file__


def test_importance_is_for_the_class_that_is_predicted(clf):
    x = X[1]
    inside = clf.module_.standardized(torch.tensor(x)).unsqueeze(0)
    for_one = importance(clf.module_.network, inside)[0].numpy()
    assert clf.predict([x])[0] == "yes"
    np.testing.assert_allclose(clf.element_importance(x), for_one, rtol=1e-5)
    np.testing.assert_allclose(clf.element_importance(x, output=1), for_one, rtol=1e-5)
    np.testing.assert_allclose(clf.element_importance(x, output=0), -for_one, rtol=1e-5)
    with pytest.raises(ValueError, match="output must be at least 0 and below 2, got 2"):
        clf.element_importance(x, output=2)
    sets, y = bags(60, classes=3)
    three = clone(CLASSIFIER).set_params(max_epochs=2).fit(sets, y)
    chosen = int(three.predict(sets[:1])[0])
    np.testing.assert_array_equal(
        three.element_importance(sets[0]), three.element_importance(sets[0], output=chosen)
    )


def test_of_many_elements_gradients_tell_what_counts(clf):
    x = np.random.default_rng(0).normal(size=(1001, 2))
    found = clf.element_importance(x)
    np.testing.assert_array_equal(found, clf.element_importance(x, method="integrated-gradients"))
    fewer = clf.element_importance(x[:20])
    np.testing.assert_array_equal(fewer, clf.element_importance(x[:20], method="leave-one-out"))
    gated = clone(CLASSIFIER).set_params(pool="gated", max_epochs=1).fit(X, Y)
    for sets in (x, X[0], X[1]):  # of whatever class
        looked = gated.element_importance(sets)
        assert looked.min() >= 0
        assert looked.sum() == pytest.approx(1, rel=1e-4)
    with pytest.raises(ValueError, match="method must be one of"):
        clf.element_importance(x, method="magic")


@pytest.mark.parametrize("y", [Y, np.array(["no", "yes"])[Y], Y > 0, Y / 2, np.stack([Y, 1 - Y], axis=1)])
def test_a_file_gives_the_classifier_back(y, tmp_path):
    clf = (
        clone(CLASSIFIER)
        .set_params(max_epochs=2, class_weight=None)
        .fit(X, y if y.dtype.kind != "f" else 2 * y)
    )
    clf.save(tmp_path / "model.safetensors")
    other = load(tmp_path / "model.safetensors")
    assert isinstance(other, SetClassifier)
    assert other.classes_.dtype == clf.classes_.dtype
    np.testing.assert_array_equal(other.classes_, clf.classes_)
    np.testing.assert_array_equal(other.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_array_equal(other.predict(X), clf.predict(X))
    assert other.history_ == clf.history_
    assert other.get_params() == clf.get_params()
    other.partial_fit(X, y if y.dtype.kind != "f" else 2 * y)
    assert other.n_iter_ == 3


def test_a_file_gives_the_regressor_back(tmp_path):
    frames = [pd.DataFrame(x, columns=["a", "b"]) for x in X]
    for loss, y in (
        ("squared_error", np.array([x.mean() for x in X])),
        ("poisson", np.array([len(x) for x in X])),
    ):
        reg = SetRegressor(loss=loss, max_epochs=2, **SMALL | {"random_state": np.random.RandomState(0)})
        reg.fit(frames, y).save(tmp_path / "model.safetensors")
        other = load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(other.predict(frames), reg.predict(frames))
        assert other.feature_names_in_.tolist() == ["a", "b"]
        assert other.random_state is None


def test_a_file_keeps_class_weights_and_asks_for_a_network_of_ones_own(tmp_path):
    path = tmp_path / "model.safetensors"
    clf = clone(CLASSIFIER).set_params(max_epochs=1, class_weight={0: 1.0, 1: 2.0}).fit(X, Y)
    clf.save(path)
    assert load(path).class_weight == {0: 1.0, 1: 2.0}
    with pytest.raises(ValueError, match="class_weight='balanced' needs all sets at once"):
        clone(CLASSIFIER).set_params(class_weight="balanced").partial_fit(X, Y)
    several = [{0: 1.0, 1: 2.0}, {0: 1.0, 1: 3.0}]
    labels = np.stack([Y, 1 - Y], axis=1)
    clone(CLASSIFIER).set_params(max_epochs=1, class_weight=several).fit(X, labels).save(path)
    assert load(path).class_weight == several

    def network(in_dim, out_dim):
        return DeepSets.build(in_dim, out_dim, dim=8, depth=1)

    clf.set_params(network=network).fit(X, Y).save(path)
    with pytest.raises(ValueError, match="custom network; pass it as load"):
        load(path)
    np.testing.assert_array_equal(load(path, network=network).predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize(
    "change",
    [
        {"estimator": "Popen"},
        {"params": {"depth": 10**9}},
        {"params": {"layers": [10**9]}},
        {"params": {"layers": [65536, 65536]}},
        {"params": {"color": "red"}},
        {"params": {"pool": "median"}},
        {"in_dim": 10**12},
        {"in_dim": 3},
        {"out_dim": -1},
        {"task": "classes"},
        {"task": "Popen"},
        {"classes": ["a", "b", "c"]},
        {"classes_type": "|V8"},
        {"classes_type": "M8[s]"},
        {"classes": ["a", "a"]},
        {"classes_type": "<U100000000"},
        {"feature_names_in": ["a"]},
        {"feature_names_in": 7},
        {"n_features_in": 99},
        {"params": {"pool": "+".join(["mean"] * 300_000)}},
        {"history": 3},
        {"n_iter": "many"},
        {"flat": None, "seed": None},
    ],
    ids=str,
)
def test_a_file_that_lies_is_refused_in_a_sentence(clf, tmp_path, change):
    from setwise.estimators.model_file import read_model, write_model

    path = tmp_path / "model.safetensors"
    clf.save(path)
    state, description = read_model(path)
    change = {
        name: description[name] | value if name == "params" else value for name, value in change.items()
    }
    write_model(path, state, description | change)
    with pytest.raises(ValueError, match="is not a valid setwise estimator") as caught:
        load(path)
    assert "model.safetensors" in str(caught.value)
    write_model(path, state, {})
    with pytest.raises(ValueError, match="is not a valid setwise estimator"):
        load(path)
    spoiled = state | {"inputs.std": torch.tensor([1.0, torch.nan], dtype=torch.float64)}
    write_model(path, spoiled, description)
    with pytest.raises(ValueError, match="weights must be finite, got NaN"):
        load(path)
    write_model(path, {name: value.double() for name, value in state.items()}, description)
    with pytest.raises(ValueError, match=r"must be torch.float32, got torch.float64"):
        load(path)


bad = {
    "labels": (X, Y[:-1], "y must have one target for each of 60 sets, got 59"),
    "no labels": (X, None, "requires y to be passed, but the target y is None"),
    "one class": (X, np.zeros(60), "expected at least two classes, got 1 class: 0$"),
    "real labels": (X, np.linspace(0, 1, 60), "Unknown label type"),
    "nan labels": (X, np.where(Y, np.nan, 1.0), "Input y contains NaN"),
    "empty set": ([*X[:-1], X[0][:0]], Y, "set 59 of 60 is empty"),
    "table": (X[0], Y, "y must have one target for each of"),
}


@pytest.mark.parametrize(("sets", "y", "sentence"), bad.values(), ids=bad)
def test_bad_targets_are_told_in_a_sentence(sets, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        clone(CLASSIFIER).fit(sets, y)


@pytest.mark.parametrize(
    ("sets", "kind", "sentence"),
    [
        ([np.ones((2, 3))], ValueError, "set 0 has elements of 3 features, expected 2 as in fit"),
        (
            np.ones((4, 2)),
            ValueError,
            r"X must be a list of sets .* 2 features as in fit, .* pass one set x as \[x\]",
        ),
        ([], ValueError, "at least one set"),
        ([X[0], "abc"], TypeError, "set 1 must be an array of numbers, got str"),
        (None, TypeError, "X must be a list"),
    ],
)
def test_bad_sets_are_told_in_a_sentence_when_predicting(clf, sets, kind, sentence):
    for method in (clf.predict, clf.predict_proba, clf.decision_function):
        with pytest.raises(kind, match=sentence):
            method(sets)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"block": "magic"}, "The 'block' parameter of SetClassifier must be a str among"),
        ({"depth": -1}, "'depth' parameter"),
        ({"depth": 10**9}, "'depth' parameter"),
        ({"layers": ()}, "layers must be one or more integers"),
        ({"layers": (10**9,)}, "layers must be one or more integers"),
        ({"hidden": (3.5,)}, "hidden must be one or more integers"),
        ({"pool": "median"}, "pool must be one of"),
        ({"lr": 0}, "'lr' parameter"),
        ({"lr": float("nan")}, "'lr' parameter"),
        ({"dropout": 1.0}, "'dropout' parameter"),
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"max_epochs": 0}, "'max_epochs' parameter"),
        ({"class_weight": {5: 1}}, "The classes, .* are not in class_weight|class_weight"),
        ({"device": "cuda"}, "device must be available on this machine, got 'cuda'"),
    ],
)
def test_absurd_settings_are_told_in_a_sentence(options, sentence):
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has it")
    with pytest.raises(ValueError, match=sentence):
        SetClassifier(**SMALL | options).fit(X, Y)


def test_targets_too_large_to_learn_are_told():
    with pytest.raises(ValueError, match=r"y must be at most .* got 1e\+300"):
        SetRegressor(**SMALL).fit(X, np.full(60, 1e300))
    with pytest.raises(ValueError, match="training SetRegressor failed: the loss became"):
        SetRegressor(loss="poisson", max_epochs=3, **SMALL | {"lr": 1e30}).fit(X, np.arange(60) * 1e30)


numbers = st.one_of(
    st.floats(),
    st.integers(),
    st.booleans(),
    st.text(max_size=3),
    st.none(),
    st.complex_numbers(),
    st.binary(max_size=3),
)
arrays = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.bool_, np.complex64, "U3", object, "M8[s]"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
garbage = st.recursive(
    numbers | arrays | arrays.map(lambda a: a.tolist()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | inner.map(lambda value: pd.Series([value, value]))
        | inner.map(lambda value: object() if value is None else (one for one in [value]))
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(sets=garbage, y=garbage | st.just(Y), use=st.sampled_from(["fit", "predict", "graph"]))
@pytest.mark.filterwarnings("ignore")
def test_garbage_is_answered_by_a_sentence(clf, sets, y, use):
    quick = SetClassifier(max_epochs=1, **SMALL)
    try:
        if use == "fit":
            quick.fit(sets, y)
        elif use == "predict":
            clf.predict(sets)
        else:
            clf.latent_graph(sets)
    except (ValueError, TypeError) as error:
        said = str(error)
    else:
        said = "nothing was wrong"
    assert said
