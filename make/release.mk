# The wheel in dist/, built twice, in two folders and at two times, which must give one file.
.PHONY: wheel-twice
wheel-twice:
	@set -e; folder=$$(mktemp -d); trap 'rm -r "$$folder"' EXIT; \
	for copy in first second/below; do \
	  mkdir -p "$$folder/$$copy"; \
	  git archive HEAD official_bert tools configs pyproject.toml setup.py README.md LICENSE | tar -x -m -C "$$folder/$$copy"; \
	  uv build --quiet --wheel --out-dir "$$folder/dist/$$copy" "$$folder/$$copy"; sleep 2; \
	done; \
	cmp "$$folder"/dist/first/*.whl "$$folder"/dist/second/below/*.whl; \
	mkdir -p dist; cp "$$folder"/dist/first/*.whl dist/; sha256sum dist/*.whl
# The versions and hashes of everything that the package and its extras require: pip install --require-hashes -r requirements.lock
.PHONY: lock
lock: .venv/.installed
	@$(BIN)/uv pip compile --quiet --universal --python-version=3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --upgrade \
	  --output-file=requirements.lock $(addprefix --extra=,$(subst $(COMMA), ,$(EXTRAS))) pyproject.toml
COMMA := ,
