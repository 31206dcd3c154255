#!/usr/bin/env bash
# What is measured on a GPU, in rounds that end in time and keep what they have:
#
#   benchmarks/rounds.sh ROUND OUT [SECONDS]      records, logs and packed run directories go to the folder OUT
#
#   vanilla     the first versions of all thirty kernels on every published shape, and the pace of it
#   scaling     two operators of short units, with one to four judges on the device
#   two         the Triton examples on one GPU, then on two
#   kernels     the kernels of kernels/h200, judged whole, held-out shapes too; sweep first: one that hangs costs most
#   sweep       variants of every kernel against each other
#   profiles    what ncu says of every kernel, on the shape of its sweep that lies in the middle by time
#   validate    references, then wrong and right kernels of every unit that results/ does not hold yet
#   attacks     every known cheat and its honest twin
#   judge       repeatability, floor and clocks of the judge; then the honest panel, ten times
#   baselines   torch, torch.compile and the libraries that are installed, two shapes an operator
#   rest        references against libraries, the recorder, profiles for the wiki's rules, tests/gpu
#
# PYTHON names the interpreter, JUDGES how many judges share the device, FLEET a suite for `rest`. Run from a checkout.
set -u

round=${1:?ROUND, see the head of this file}
out=${2:?OUT, a folder}
seconds=${3:-540}
python=${PYTHON:-python3}
judges=${JUDGES:-2}
runs=runs/round-$round
rm -rf "$runs"; mkdir -p "$out" "$runs"
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"

left() { echo $((seconds - SECONDS)); }
within() { # within SECONDS LOG COMMAND...: Ctrl-C when they are over, which keeps what is finished
	local limit=$1 log=$2 began=$SECONDS
	shift 2
	timeout -s INT -k 40 "$limit" "$@" >"$out/$log" 2>&1
	echo "$log: exit status $?, $((SECONDS - began)) s"
}
atrex=("$python" -m atrex.cli.main)
judged() { # judged CANDIDATES NAME [OPTION...]: the whole suite, packed
	local folder=$1 name=$2
	shift 2
	within "$(left)" "$name.txt" "${atrex[@]}" eval "$folder" --device cuda:0 --judges "$judges" --out "$runs/$name" "$@"
	"${atrex[@]}" score "$runs/$name" >"$out/$name-score.txt" 2>&1
	tar czf "$out/$name.tgz" -C "$runs" "$name"
}

case $round in
vanilla)
	judged results/vanilla/triton vanilla --shapes published --no-held-out
	"$python" benchmarks/pace.py "$runs/vanilla" --out "$out/h200-pace.json" >"$out/pace.txt" 2>&1
	cat "$out/pace.txt"
	;;
scaling)
	mkdir "$runs/short"
	cp results/vanilla/triton/fused_add_rms_norm.py results/vanilla/triton/silu_and_mul.py "$runs/short"
	for n in 1 2 3 4; do
		within "$(left)" "judges-$n.txt" "${atrex[@]}" eval "$runs/short" --device cuda:0 --judges $n \
			--out "$runs/judges-$n"
	done
	"$python" benchmarks/pace.py "$runs"/judges-? --out "$out/h200-scaling.json" >"$out/scaling.txt" 2>&1
	tar czf "$out/scaling.tgz" -C "$runs" judges-1 judges-2 judges-3 judges-4
	cat "$out/scaling.txt"
	;;
two)
	within "$(left)" gpus-1.txt "${atrex[@]}" eval examples/candidates/triton --device cuda:0 --judges "$judges" \
		--shapes published --no-held-out --out "$runs/gpus-1"
	within "$(left)" gpus-2.txt "${atrex[@]}" eval examples/candidates/triton --device cuda:0,cuda:1 --judges "$judges" \
		--shapes published --no-held-out --out "$runs/gpus-2"
	"$python" benchmarks/pace.py "$runs"/gpus-? --out "$out/h200-two-gpus.json" >"$out/two.txt" 2>&1
	cat "$out/two.txt"
	;;
kernels)
	cp -r kernels/h200 "$runs/h200"
	judged "$runs/h200" kernels --compile-budget 60 --execution-budget 3
	;;
sweep)
	within "$(left)" sweep.txt "$python" benchmarks/sweep.py --device cuda:0 --jobs 12 \
		--seconds "$(($(left) - 25))" --out "$out/sweep.json"
	tail -140 "$out/sweep.txt"
	;;
profiles)
	"$python" - >"$runs/units" <<-'EOF'
		import json
		from pathlib import Path
		from benchmarks.kernel_files import kernel_file
		from benchmarks.sweep import read_spec
		from atrex.evaluate.budgets import predicted_seconds
		from atrex.problems.load import load_suite
		for problem in load_suite().problems.values():
		    shapes = read_spec(Path.cwd(), problem.operator, problem).shapes
		    shapes.sort(key=lambda s: predicted_seconds(problem.work(problem.shape(s))) if s in problem.shapes else 0)
		    print(problem.operator, shapes[len(shapes) // 2], kernel_file(problem.operator))
	EOF
	while read -r operator shape file; do
		[ "$(left)" -lt 30 ] || within 60 "profile-$operator.txt" "${atrex[@]}" profile "$file" --problem "$operator" \
			--shape "$shape" --out "$out/profile-$operator.json" </dev/null
	done <"$runs/units"
	;;
validate)
	cp results/suite-validate-h200.json results/kill-table-h200.json "$out"
	within "$(left)" validate.txt "${atrex[@]}" suite validate --device cuda:0 --jobs 4 --resume \
		--out "$out/suite-validate-h200.json"
	within "$(left)" mutants.txt "${atrex[@]}" suite validate --device cuda:0 --mutants --jobs 6 --resume \
		--budget-s "$(($(left) - 40))" --out "$out/kill-table-h200.json"
	tail -4 "$out/mutants.txt"
	;;
attacks)
	within "$(left)" attacks.txt "${atrex[@]}" attacks --device cuda:0 --out "$out/kill-attacks-h200.json"
	tail -12 "$out/attacks.txt"
	;;
judge)
	within "$(left)" judge.txt "$python" benchmarks/judge.py examples/candidates/triton --device cuda:0 --pace "" \
		--runs "$runs/judge" --out "$out/h200-judge-again.json"
	within "$(left)" panel.txt "$python" benchmarks/panel.py --device cuda:0 --times 10 --judges "$judges" \
		--out "$out/h200-panel.json"
	tail -3 "$out/panel.txt"
	;;
baselines)
	within "$(left)" baselines.txt "$python" benchmarks/baselines.py --device cuda:0 --judges "$judges" \
		--seconds "$(($(left) - 30))" --out "$runs/baselines" --record "$out/h200-baselines.json"
	tar czf "$out/baselines.tgz" -C "$runs" baselines
	tail -5 "$out/baselines.txt"
	;;
rest)
	within 60 references.txt "$python" -m benchmarks.references --device cuda:0 --out "$out/references" \
		--problem fused_rmsnorm_quant causal_conv1d attention_forward
	within 90 recorder.txt "$python" benchmarks/record_gpu.py record --device cuda:0 --trace "$out/gpu-attach.json.gz" \
		--out "$out/gpu-attach.json"
	within 120 fixtures.txt "$python" benchmarks/wiki_fixtures.py --device cuda:0 --out "$out/fixtures"
	if [ -n "${FLEET:-}" ]; then # a suite that benchmarks/fleet.py --build has left
		"${atrex[@]}" suite validate "$FLEET" --device cuda:0 --json >"$out/fleet-validated.json" 2>"$out/fleet-validate.txt"
		within 120 fleet.txt "${atrex[@]}" eval results/vanilla/triton --suite "$FLEET" --device cuda:0 --out "$runs/fleet"
		tar czf "$out/fleet.tgz" -C "$runs" fleet
	fi
	within "$(left)" tests.txt "$python" -m pytest -q -m gpu tests/gpu
	tail -5 "$out/tests.txt"
	;;
*)
	echo "error: no round $round; see the head of $0" >&2
	exit 2
	;;
esac
rm -rf "$runs"
