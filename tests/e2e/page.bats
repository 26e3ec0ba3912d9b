# The page: what it is made of fits together, and in a browser, where there is one, it shows a job.

load ../e2e/lib

setup() {
  cluster_setup
  start_coordinator --web-dir "$ROOT/web"
}
teardown() { cluster_teardown; }

@test "the page's files are served, and every element that the script looks for is there" {
  local id
  get / >"$DIR/index.html"
  get /app.js >"$DIR/app.js"
  get /style.css | grep -q prefers-color-scheme
  # ids by $("..."), and those of setFact, which writes a fact and hides its label
  for id in $(grep -oE '(\$|setFact)\("[a-z-]+"' "$DIR/app.js" | grep -oE '[a-z-]+"$' | tr -d '"' | sort -u); do
    grep -q "id=\"$id\"" "$DIR/index.html" || { echo "index.html has no element \"$id\""; return 1; }
  done
  [ -z "$(grep -nE 'innerHTML|outerHTML|insertAdjacentHTML|document\.write' "$DIR/app.js" || true)" ]
}

@test "in a browser: the list, and the newest job with its figures, devices and artifacts" {
  local browser id
  browser=$(command -v chromium chromium-browser google-chrome | head -n 1)
  [ -n "$browser" ] || skip "no Chromium here (Debian: apt-get install chromium; Ubuntu has it as a snap alone)"
  start_agent n1 2
  id=$(submit "$(jq -c '.name = "page" | .resources = {devices: 2}' tests/reference/digits-mlp-sgd/job.json)")
  wait_end "$id" succeeded
  timeout $((60 * SLOW)) "$browser" --headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update \
    --disable-sync --no-first-run --user-data-dir="$DIR/browser" --virtual-time-budget=3000 --dump-dom "$URL/" >"$DIR/dom" 2>"$DIR/browser.log" 3>&-
  grep -q 'page: succeeded' "$DIR/dom"
  grep -q 'n1:0, n1:1' "$DIR/dom"
  grep -q "href=\"/v1/jobs/$id/artifacts/model.safetensors\"" "$DIR/dom"
  grep -q 'at step 58, [0-9]* samples/s. Epoch 2: epoch loss ' "$DIR/dom"
  grep -q 'mirrored, 2 ranks. ' "$DIR/dom"
  grep -q '2 of 2 cpu free' "$DIR/dom"
}
