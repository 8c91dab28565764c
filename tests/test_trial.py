import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from ampx.lock import Holder, TrialInUse
from ampx.trial import Trial, TrialExists, trials_in

ROOT = Path(__file__).parents[1]
CONFIG = "seed: 1\nname: größe\n"

RUN = (
    "import sys, time; from ampx.trial import Trial;\n"
    "trial = Trial.open(sys.argv[1])\n"
    "with trial.locked():\n"
    "    trial.set_status('running'); print('running', flush=True); time.sleep(60)\n"
)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial.create(tmp_path / "sweep" / "trial", config_text=CONFIG, overrides=["dtype=bf16"])


@pytest.fixture
def running(trial: Trial) -> Iterator[subprocess.Popen[str]]:
    """A real process that works in `trial`."""
    command = [sys.executable, "-c", RUN, str(trial.path)]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    yield process
    process.kill()
    process.communicate()


def kill_9(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)


def test_a_new_trial_is_complete_and_pending(trial: Trial) -> None:
    assert {path.name for path in trial.path.iterdir()} == {
        "config.yaml",
        "overrides.yaml",
        "status.json",
        "events.jsonl",
        "log",
        "checkpoints",
    }
    assert [path.name for path in trial.path.parent.iterdir()] == ["trial"]
    assert (trial.status().state, trial.status().attempts) == ("pending", 0)
    assert trial.read_config_text() == CONFIG
    assert trial.read_jsonl("events.jsonl") == []
    assert trial.log_path(1).parent.is_dir()
    assert trial.checkpoints.is_dir()
    assert Trial.open(trial.path) == trial


@pytest.mark.parametrize(
    "overrides",
    [[], ["dtype=bf16", "+model.name='a b'"], ['x="\\\n\t\x7f"', "größe=日本 😀", "\u2028\ufeff", "- a", ""]],
)
def test_overrides_come_back_as_typed_and_are_yaml(tmp_path: Path, overrides: list[str]) -> None:
    trial = Trial.create(tmp_path / "trial", config_text=CONFIG, overrides=overrides)
    assert trial.read_overrides() == overrides
    assert yaml.safe_load((trial.path / "overrides.yaml").read_text()) == overrides


def test_overrides_edited_by_hand_are_read(trial: Trial) -> None:
    (trial.path / "overrides.yaml").write_text("# mine\n- dtype=fp16\n- 'seed=2'\n")
    assert trial.read_overrides() == ["dtype=fp16", "'seed=2'"]


def test_a_taken_place_is_left_as_it_is(trial: Trial) -> None:
    trial.event("kept")
    with pytest.raises(TrialExists, match=r"sweep/trial: is already there; resume it .*name=NAME"):
        Trial.create(trial.path, config_text="", overrides=[])
    (trial.path.parent / "file").touch()
    with pytest.raises(TrialExists):
        Trial.create(trial.path.parent / "file", config_text="", overrides=[])
    assert len(trial.read_jsonl("events.jsonl")) == 1
    assert {path.name for path in trial.path.parent.iterdir()} == {"trial", "file"}


def test_of_many_creators_of_one_trial_one_wins(tmp_path: Path) -> None:
    script = (
        "import sys; from ampx.trial import Trial, TrialExists\n"
        "for number in range(50):\n"
        "    try: Trial.create(f'{sys.argv[1]}/t{number}', config_text=sys.argv[2], overrides=[])\n"
        "    except TrialExists: pass\n"
        "    else: print(number)\n"
    )
    commands = [[sys.executable, "-c", script, str(tmp_path), who] for who in "abc"]
    processes = [
        subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) for command in commands
    ]
    created = [process.communicate(timeout=30)[0].split() for process in processes]
    assert sorted(int(number) for numbers in created for number in numbers) == list(range(50))
    for who, numbers in zip("abc", created, strict=True):
        assert {Trial.open(tmp_path / f"t{number}").read_config_text() for number in numbers} <= {who}


def test_kill_9_while_creating_leaves_a_whole_trial_or_none(tmp_path: Path) -> None:
    script = (
        "import sys, itertools; from ampx.trial import Trial\n"
        "for i in itertools.count():\n"
        "    Trial.create(f'{sys.argv[1]}/t{i}', config_text='x' * 9999, overrides=[])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT)
    while not (tmp_path / "t20").exists():
        time.sleep(0.01)
    kill_9(process)
    trials = trials_in(tmp_path)
    assert {trial.path.name for trial in trials} == {path.name for path in tmp_path.glob("t*")}
    for trial in trials:
        assert trial.status().state == "pending"
        assert trial.read_config_text() == "x" * 9999


def test_an_unwritable_place_gets_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=r"file/trial: cannot be written \(File exists: .*/file\); .*out=DIR"
    ):
        Trial.create(tmp_path / "file" / "trial", config_text="", overrides=[])


@pytest.mark.parametrize("missing", ["config.yaml", "status.json"])
def test_a_folder_that_is_no_trial_says_what_is_missing(trial: Trial, missing: str) -> None:
    (trial.path / missing).unlink()
    with pytest.raises(ValueError, match=rf"sweep/trial: is no trial: it has no {missing}; give the folder"):
        Trial.open(trial.path)
    with pytest.raises(ValueError, match="is no trial: there is no such folder"):
        Trial.open(trial.path / "nowhere")
    with pytest.raises(ValueError, match="is no trial: it is a file"):
        Trial.open(trial.path / "events.jsonl")
    assert trials_in(trial.path.parent) == []


def test_a_broken_status_file_is_named(trial: Trial) -> None:
    (trial.path / "status.json").write_text('{"state": "asleep", "created": "x"}')
    with pytest.raises(ValueError, match=r"status\.json: state='asleep': a trial is one of .*; restore it"):
        trial.status()
    (trial.path / "status.json").write_text("{}")
    with pytest.raises(ValueError, match=r"status\.json: .*missing.*; restore it"):
        trial.status()


def test_a_second_user_is_refused_while_the_first_lives(trial: Trial, running: subprocess.Popen[str]) -> None:
    with pytest.raises(TrialInUse, match=f"in use by process {running.pid}"), trial.locked(wait_s=0):
        pass
    assert trial.settled_status() == trial.status()
    assert trial.status().state == "running"


def test_a_killed_trial_is_preempted_and_can_be_started_again(
    trial: Trial, running: subprocess.Popen[str]
) -> None:
    kill_9(running)
    assert trial.status().state == "running"
    settled = trial.settled_status()
    assert (settled.state, settled.attempts) == ("preempted", 1)
    assert settled.reason == "its process ended without a word (killed, machine lost, or disk full)"
    assert settled == trial.status() == trial.settled_status()
    kinds = [event["kind"] for event in trial.read_jsonl("events.jsonl")]
    assert kinds == ["lock_broken", "settled"]
    with trial.locked():
        trial.set_status("running")
    assert trial.status().attempts == 2


def test_a_start_takes_over_from_a_dead_process_and_notes_it(
    trial: Trial, running: subprocess.Popen[str]
) -> None:
    kill_9(running)
    with trial.locked() as lock:
        assert lock.broken is not None
        trial.set_status("running")
        trial.set_status("completed")
    assert trial.status().attempts == 2
    (event,) = trial.read_jsonl("events.jsonl")
    assert (event["kind"], event["holder"]["pid"]) == ("lock_broken", running.pid)
    assert trial.holder() is None


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [("cancel", "cancelled", "why"), ("prune", "cancelled", "pruned"), ("timeout", "timeout", "why")],
)
def test_a_trial_killed_on_request_ends_as_requested(
    trial: Trial, running: subprocess.Popen[str], kind: str, state: str, reason: str
) -> None:
    trial.write_request(kind, "why")  # pyright: ignore[reportArgumentType]
    kill_9(running)
    settled = trial.settled_status()
    assert (settled.state, settled.reason) == (state, reason)
    trial.clear_request()
    trial.clear_request()
    assert trial.request() is None


def test_a_request_made_by_hand_must_be_one(trial: Trial) -> None:
    trial.write_json("request.json", {"kind": "stop"})
    with pytest.raises(ValueError, match=r"request\.json: kind='stop': a request is one of .*; delete it"):
        trial.request()


def test_a_running_trial_without_any_lock_is_settled(trial: Trial) -> None:
    """A trial copied while it ran, or one whose lock somebody deleted."""
    trial.set_status("running")
    assert trial.settled_status().state == "preempted"


def test_a_trial_that_died_elsewhere_ended_at_its_last_heartbeat(trial: Trial) -> None:
    trial.set_status("running")
    (trial.path / "lock").write_text(json.dumps(asdict(replace(Holder.current(), host="n2"))))
    assert trial.settled_status().state == "running"
    subprocess.run(["touch", "-d", "2020-01-02T03:04:05Z", trial.path / "lock"], check=True)
    assert trial.settled_status().ended == "2020-01-02T03:04:05.000Z"


def test_a_read_only_disk_does_not_hide_how_a_trial_ended(tmp_path: Path) -> None:
    """Broken by letting the failure to store it out, and by not looking at the lock before taking it."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    try:
        trial = Trial.create(tmp_path / "trial", config_text=CONFIG, overrides=[])
        trial.set_status("running")
        elsewhere = Trial.create(tmp_path / "elsewhere", config_text=CONFIG, overrides=[])
        elsewhere.set_status("running")
        (elsewhere.path / "lock").write_text(json.dumps(asdict(replace(Holder.current(), host="n2"))))
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        assert elsewhere.settled_status().state == "running"
        assert trial.settled_status().state == "preempted"
        assert trial.status().state == "running"
        with pytest.raises(ValueError, match=r"trial/lock: cannot be written \(Read-only"), trial.locked():
            pass
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_records_are_complete_lines_without_nan(trial: Trial) -> None:
    trial.append_json("steps.jsonl", [{"step": 0, "loss": float("nan")}, {"step": 1, "loss": 0.5}])
    trial.append_lines("steps.jsonl", ['{"step": 2}'])
    trial.sync("steps.jsonl", "evals.jsonl")
    assert (trial.path / "steps.jsonl").read_text().splitlines()[0] == '{"step": 0, "loss": null}'
    assert trial.truncate_after("steps.jsonl", 2) == 1
    assert trial.read_jsonl("steps.jsonl") == [{"step": 0, "loss": None}, {"step": 1, "loss": 0.5}]


def test_events_carry_their_time_kind_and_details(trial: Trial) -> None:
    trial.event("save", step=10, file="step10.pt")
    (event,) = trial.read_jsonl("events.jsonl")
    assert event.pop("time").endswith("Z")
    assert event == {"kind": "save", "step": 10, "file": "step10.pt"}


def test_json_files_of_a_trial_come_back(trial: Trial) -> None:
    trial.write_json("result.json", {"metrics": {"accuracy": {"final": 0.9}}})
    assert trial.read_json("result.json") == {"metrics": {"accuracy": {"final": 0.9}}}
    assert trial.read_json("manifest.json") is None


def test_the_trial_directory_needs_neither_torch_nor_yaml() -> None:
    script = "import sys, ampx.trial; print({'torch', 'yaml', 'pydantic', 'numpy'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert result.stdout == "set()\n"
