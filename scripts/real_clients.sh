#!/usr/bin/env bash
# Runs real clients through the gateway, for each upstream protocol: scripts/real_clients.sh [TARGET [CLIENTS]]
# TARGET is PROVIDER:MODEL for all requests, or `own` for each client's own protocol. Needs ../shared/clients, npm and pip.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
harness=$root/../shared/clients/real_clients.py
[ -f "$harness" ] || { echo "the harness is not beside this repository"; exit 0; }
targets=${1:-"own openai:gpt-4o openai-responses:gpt-5 anthropic:claude-sonnet-4-5 gemini:gemini-2.5-pro"}
clients=${2:-all}
work=${CLIENTS_WORK:-$(mktemp -d)}
stub=4391 port=4390 key=sk-test-real-clients-0000
python3 "$harness" --install-only --work "$work" --clients "$clients" > "$work.install.log" 2>&1
for target in $targets; do
  echo "== $target"
  route=(); [ "$target" = own ] || route=(--route "*=$target")
  python3 "$harness" --serve-stub $stub --captures "$work/captures" > "$work/stub.log" 2>&1 & stub_pid=$!
  METIS_HOME=$work/home OPENAI_BASE_URL=http://127.0.0.1:$stub/v1 ANTHROPIC_BASE_URL=http://127.0.0.1:$stub \
    GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:$stub OLLAMA_HOST=127.0.0.1:$stub OPENAI_API_KEY=up ANTHROPIC_API_KEY=up \
    GEMINI_API_KEY=up "$root/.venv/bin/metis" serve --port $port --key "harness=$key" "${route[@]}" > "$work/gateway.log" 2>&1 & gateway_pid=$!
  trap 'kill $stub_pid $gateway_pid 2>/dev/null || true' EXIT
  until curl -sf "http://127.0.0.1:$port/readyz" > /dev/null; do sleep 0.2; done
  python3 "$harness" --base-url "http://127.0.0.1:$port" --stub-url "http://127.0.0.1:$stub" --api-key "$key" \
    --work "$work" --no-install --clients "$clients" || true
  kill $stub_pid $gateway_pid; wait $stub_pid $gateway_pid 2>/dev/null || true
done
