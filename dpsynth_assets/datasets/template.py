"""The commented dataset file that `dg scaffold defs` writes."""

_TEMPLATE = """\
# One private dataset. Everything written in this file is public.
# Check it with `dpsynth datasets check`; see what it would cost with `dpsynth plan`.
type: dpsynth_assets.components.PrivateDataset

attributes:
  name: {name}                     # cohort and ledger account; lower case, digits, underscores
  description: ""                  # what the records are, in a sentence
  owners: []                       # e-mail addresses, or "team:name"

  source:
    path: data/{name}.parquet      # file, glob, Hugging Face `save_to_disk` folder, or hf://
                                   # address; "{{{{ env.NAME }}}}" reads the environment
    format: auto                   # auto | csv | jsonl | parquet | huggingface
    version: "1"                   # a new version of the same records refunds no budget

  columns:
    text: text
    labels: []                     # e.g. [category]: every corpus row then has a label
    # id: review_id                # none: a record is identified by its content
    # max_text_characters: 20000   # longer records are set aside
    # object: [title, year, cast]  # instead of text: each record as one JSON object

  # structured:                    # texts that are JSON records: how many parse and validate
  #   json_schema: schemas/{name}.json   # or the schema itself; a public fact

  # Prompts. Without this block the model's own document format writes them: for a pretrained
  # checkpoint the label, then the text in a fence. An instruction-tuned one wants a user's turn
  # around the examples, and an answer that has begun. For JSON records {{schema}} says publicly
  # what the private prompt shows by example.
  # prompt:
  #   private: |
  #     Here are reviews of category {{label}}.
  #
  #     {{examples}}
  #
  #     Please write one more.
  #   example: "Review: {{example}}"
  #   public_text: "<review of category {{label}}>"   # in an example's place; or a public: prompt
  #   response_start: "Review:"
  #   use_chat_template: true
  #   end: "<end_of_turn>"         # token that ends the model's turn

  # Whose presence is hidden. Default: one record. For people with several records:
  # privacy_unit:
  #   column: customer_id
  #   max_records: 5               # records used of one person; a larger bound costs more noise
  neighboring_relation: add-remove # add-remove | zero-out | replace-one

  public_facts:                    # what is absent here stays private
    labels: {{}}                     # e.g. {{category: [Restaurants, Shopping]}}, or
                                   # {{stars: {{"1": one star, "5": five stars}}}} for prompts
    # records: 5000                # only if the number of records is public

  budget:                          # all that may ever be spent on these records
    epsilon: 4.0
    delta: 1.0e-6                  # public constant, at most 1 / (10 x number of records)
    accountant: zcdp               # zcdp: methods may be added later | tight: plan fixed now
    accepts_ex_post: false         # data-dependent bounds are not differential privacy

  held_out_fraction: 0.1           # share of units kept for evaluation, read by no mechanism
  public_data: demo                # public base: text, language model, clusters

  cluster_histogram:               # noisy counts by label and public cluster; gives batch counts
    budget_share: 0.02             # shares compose: all of them together cost the whole budget
    clusters_per_label: 4

  methods:                         # one corpus each; without budget_share: equal parts of the rest
    - method: mean_clustered       # `dpsynth datasets methods` lists methods and their settings
      settings:
        expected_batch_size: 128   # larger: less cost a token, fewer texts; see `dpsynth plan`

  evaluation:
    rows: 1000
    references: true

  # schedule:
  #   cron: "0 3 1 * *"            # starts switched off
"""


def dataset_template(name: str) -> str:
    """Fills the template of a dataset file.

    Args:
        name: Name of the dataset: a lower-case letter, then letters, digits and underscores.

    Returns:
        YAML that validates as it stands.
    """
    return _TEMPLATE.format(name=name)
