// The walks of a data steward, of a platform engineer and of a privacy officer through the web UI.
// Each step looks for what that person would look for, saves a picture, and prints one line of JSON
// with its clicks. Run by `test_walk.py` and by `make pictures`.
//
//   node walk.mjs '{"url": ..., "output": ..., "chromium": ..., "playwright": ...,
//                   "cohort": ..., "method": ..., "groups": {...}, "blocked": ..., ...}'
import { mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const plan = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(plan.playwright, 'package.json'))('playwright-core');
const SWITCHES = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync'];
// A phone is held upright.
const VIEWPORT = { width: plan.width, height: Math.max(844, Math.round((plan.width * 2) / 3)) };
const PICTURE_WIDTH = 1280;
const PATIENCE = plan.patience_seconds * 1000;
const RUN_PATIENCE = plan.run_patience_seconds * 1000;
const MOST_CLICKS_TO_AN_ANSWER = 3;

// ---- what a person does -------------------------------------------------------------------------

const visible = (page, text, options) =>
  page.getByText(text, options).filter({ visible: true }).first();

async function see(page, ...texts) {
  for (const text of texts) await visible(page, text).waitFor({ timeout: PATIENCE });
}

async function seeExactly(page, ...texts) {
  for (const text of texts) await visible(page, text, { exact: true }).waitFor({ timeout: PATIENCE });
}

async function leftToRight(page, ...names) {
  const edges = [];
  for (const name of names) {
    const places = page.getByText(name, { exact: true }).filter({ visible: true });
    edges.push((await places.last().boundingBox()).x);
  }
  const sorted = [...edges].sort((a, b) => a - b);
  if (String(edges) !== String(sorted)) throw new Error(`${names} stand at ${edges}`);
}

async function select(page, query) {
  await page.goto(`${plan.url}/asset-groups~${encodeURIComponent(query)}`);
  await page.getByRole('button', { name: /Materialize all/ }).waitFor({ timeout: PATIENCE });
}

async function expand(page, query, ...groups) {
  const expanded = groups.map((group) => `global@global:${group}`).join(',');
  const where = `/asset-groups~${encodeURIComponent(query)}?expanded=${encodeURIComponent(expanded)}`;
  await page.goto(plan.url + where);
}

// Folds the side bars away, once for all following pages.
async function makeRoom(page) {
  await visible(page, 'Hide navigation').click();
  await page.locator('button:has([aria-label=panel_show_right])').first().click();
}

const toTop = (page, heading) =>
  visible(page, heading, { exact: true }).evaluate((element) => element.scrollIntoView());

const openAsset = (page, key, view = 'overview') =>
  page.goto(`${plan.url}/assets/${key}?view=${view}`);

const launchIsAnswered = (page) => page.waitForResponse(async (response) => {
  const asked = response.request().postData() ?? '';
  return response.url().includes('/graphql') && asked.includes('LaunchPipelineExecution');
}, { timeout: PATIENCE });

const runOf = async (answer) =>
  /"(?:id|runId)":"([0-9a-f-]{36})"/.exec(JSON.stringify(await (await answer).json()))[1];

// Starts a run of what is selected and returns its id, as the UI's own request tells it.
async function materialise(page) {
  const answer = launchIsAnswered(page);
  await page.getByRole('button', { name: /Materialize all/ }).click();
  // Asked only where something upstream was never made.
  const sure = page.getByRole('button', { name: 'Confirm' });
  await Promise.race([answer, sure.click({ timeout: PATIENCE }).catch(() => null)]);
  return runOf(answer);
}

// Waits until a run has ended, away from its page, whose live log would cost a processor; then looks.
async function ends(page, expected) {
  const query = `{ runOrError(runId: "${run}") { ... on Run { status } } }`;
  const deadline = Date.now() + RUN_PATIENCE;
  await page.goto('about:blank');
  let status = '';
  while (!['SUCCESS', 'FAILURE', 'CANCELED'].includes(status) && Date.now() < deadline) {
    await new Promise((wake) => setTimeout(wake, 2000));
    const answer = await fetch(`${plan.url}/graphql`, {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ query }),
    });
    status = (await answer.json()).data.runOrError.status;
  }
  if (status !== expected.toUpperCase()) throw new Error(`expected ${expected}, the run is ${status}`);
  await page.goto(`${plan.url}/runs/${run}`);
  await seeExactly(page, expected);
}

// Every check of a corpus and of its candidate is of the rows as they are: none was left out.
async function checksStand(page) {
  for (const [key, checks] of Object.entries(CHECKS)) {
    await openAsset(page, key, 'checks');
    await seeExactly(page, ...checks);
    await page.getByText('Succeeded', { exact: true }).nth(checks.length - 1).waitFor();
    for (const word of [/not evaluated/i, /skipped/i, /failed/i]) {
      if (await visible(page, word).isVisible()) throw new Error(`${key}: a check says ${word}`);
    }
  }
}

async function openLaunchpad(page) {
  const button = page.getByRole('button', { name: 'Materialize' }).first();
  await button.locator('xpath=following::button[1]').click();
  await visible(page, 'Open launchpad').click();
  await page.locator('[role=dialog] .CodeMirror').first().waitFor({ timeout: PATIENCE });
}

// Finds an asset by its name from the page the UI opens with.
async function search(page, words, ...shown) {
  await page.goto(plan.url);
  await page.locator('button:has([aria-label=search])').filter({ visible: true }).first().click();
  await page.locator('input[data-search-input]').fill(words);
  let hit = page.locator('a[class*=resultLink]').filter({ visible: true });
  for (const text of shown) hit = hit.filter({ hasText: text });
  await hit.first().click();
}

// Opens the text behind a metadata entry, at its beginning. A short one stands in its row.
async function unfold(page, entry, link = 'Show Markdown') {
  const row = page.locator('tr', { hasText: entry }).filter({ visible: true }).first();
  const fold = row.getByText(link).first();
  await row.locator('table').or(fold).first().waitFor();
  if (!await fold.isVisible()) {
    await row.evaluate((element) => element.scrollIntoView());
    return row;
  }
  await fold.click();
  const dialog = page.locator('[role=dialog]').filter({ visible: true }).last();
  await dialog.getByText(entry).first().waitFor();
  await dialog.evaluate((element) => {
    for (const inner of element.querySelectorAll('*')) inner.scrollTop = 0;
    for (let outer = element; outer; outer = outer.parentElement) outer.scrollTop = 0;
  });
  return dialog;
}

// Saves what the page shows while a step is under way, at most five pictures a second.
async function film(page, folder, stepName) {
  mkdirSync(folder, { recursive: true });
  const session = await page.context().newCDPSession(page);
  let last = 0;
  session.on('Page.screencastFrame', ({ data, sessionId }) => {
    session.send('Page.screencastFrameAck', { sessionId }).catch(() => null);
    if (Date.now() - last < 200) return;
    last = Date.now();
    writeFileSync(join(folder, `${stepName()}-${last}.png`), Buffer.from(data, 'base64'));
  });
  await session.send('Page.startScreencast', { format: 'png' });
}

const write = (page, text) => page.evaluate((value) => {
  [...document.querySelectorAll('[role=dialog] .CodeMirror')][0].CodeMirror.setValue(value);
}, text);

// ---- the walk -----------------------------------------------------------------------------------

const { cohort, blocked, method, groups } = plan;
const candidate = `${cohort}/${method}/candidate_corpus`;
const CHECKS = {
  [candidate]: ['attacks_withstood', 'budget_kept', 'corpus_not_empty', 'no_canary'],
  [`${cohort}/${method}/corpus`]: ['card_equals_ledger'],
  [`${cohort}/audit/audit_trail`]: ['ledger_agrees_with_event_log'],
};
const mechanism = `${cohort}/${method}/${plan.mechanism}`;
const schedulePage = (name) => `${plan.url}/locations/dpsynth_assets/schedules/${name}`;
const whole = `+key:"${cohort}/evaluation/evaluation_report"`;
const audited = `${whole} or +key:"${cohort}/audit/audit_trail"`;
let run;
let clicks = 0;

const STEPS = {
  // ---- the data steward --------------------------------------------------------------------------

  async graph(page) {
    await page.goto(`${plan.url}/asset-groups`);
    await seeExactly(page, groups.public, cohort, blocked);
    await see(page, 'Materialize all');
    await leftToRight(page, groups.public, cohort);
  },

  async data_flow(page) {
    await makeRoom(page);
    await expand(page, whole, cohort, groups.records, groups.method);
    await seeExactly(page, groups.public, 'private_records', 'cluster_histogram', 'corpus');
    await leftToRight(page, 'private_records', 'cluster_histogram', 'candidate_corpus', 'corpus',
      groups.evaluation);
  },

  async mechanism_explained(page) {
    await openAsset(page, mechanism);
    await see(page, plan.paper, 'dpsynth/privacy: released', 'Source code', plan.code);
    const paper = page.getByRole('link', { name: plan.paper }).first();
    const address = await paper.getAttribute('href');
    if (!address.startsWith('https://arxiv.org/abs/')) throw new Error(`the paper is at ${address}`);
  },

  async materialise(page) {
    await select(page, audited);
    run = await materialise(page);
    await page.goto(`${plan.url}/runs/${run}`);
    await see(page, /assets$/, /checks$/);
  },

  async progress(page) {
    await visible(page, /(left|took \d+ s|reserved)$/).waitFor({ timeout: RUN_PATIENCE });
  },

  async finished(page) {
    await ends(page, 'Success');
    await checksStand(page);
    await page.goto(`${plan.url}/runs/${run}`);
    await seeExactly(page, 'Success');
  },

  async privacy_levels(page) {
    const query = `key:"${cohort}/shared/private_records" or key:"${cohort}/shared/cluster_histogram"`
      + ` or key:"${candidate}"`;
    await expand(page, query, cohort, groups.records, groups.method);
    await seeExactly(page, 'sensitive', 'released', 'opendp', 'PyTorch', 'Materialized');
  },

  async spend(page) {
    await openAsset(page, candidate);
    await see(page, 'dpsynth/epsilon', 'dpsynth/delta', 'dpsynth/guarantee', 'dpsynth/epsilon_remaining');
    await toTop(page, 'Metadata');
  },

  async corpus(page) {
    await openAsset(page, `${cohort}/${method}/corpus`);
    await see(page, 'dpsynth/epsilon', 'dpsynth/epsilon_remaining', 'dpsynth/samples', 'dpsynth/card');
    await see(page, /^ε \S+ of \S+ guaranteed at δ \S+, \d+ rows; scores: /);
    const [needed, there] = await page.locator('tr', { hasText: 'dpsynth/files' }).first()
      .locator('xpath=ancestor::table[1]').evaluate((table) =>
        [table.scrollWidth, table.parentElement.clientWidth]);
    if (needed > there && plan.width >= 1440) throw new Error(`metadata is cut off: ${needed} in ${there}`);
    await toTop(page, 'Status');
  },

  async columns(page) {
    await openAsset(page, `${cohort}/${method}/corpus`);
    await see(page, 'synthetic text', 'dpsynth/method', 'dpsynth/in_words');
    await toTop(page, 'Columns');
  },

  async samples(page) {
    await openAsset(page, `${cohort}/${method}/corpus`);
    const samples = page.locator('tr', { hasText: 'dpsynth/samples' }).first();
    await samples.locator('table').first().waitFor({ timeout: PATIENCE });
    await samples.evaluate((row) => row.scrollIntoView());
  },

  async plots(page) {
    await openAsset(page, `${cohort}/shared/cluster_histogram`);
    await see(page, 'dpsynth/plot');
    await page.getByText('Show Markdown').filter({ visible: true }).last().click();
    await page.locator('[role=dialog] img').waitFor({ timeout: PATIENCE });
  },

  async evaluation(page) {
    await openAsset(page, `${cohort}/evaluation/evaluation_report`);
    await see(page, 'dpsynth/privacy: internal', 'MAUVE');
  },

  async report(page) {
    await page.goto(`${plan.url}/pages/reports/${cohort}/report.html`);
    await see(page, 'Samples');
    const [needed, there] = await page.locator('.wide').first().evaluate((box) =>
      [box.scrollWidth, box.clientWidth]);
    if (needed > there) throw new Error(`the first table is cut off: ${needed} in ${there}`);
  },

  async launchpad_refuses(page) {
    await openAsset(page, candidate);
    await openLaunchpad(page);
    const op = candidate.replaceAll('/', '__');
    await write(page, `ops:\n  ${op}:\n    config:\n      epsilon: 3\n`);
    await see(page, /unexpected config entry "epsilon"/);
  },

  // Another release, for which the budget has no room. What was released before stays valid.
  async refused(page) {
    await openAsset(page, candidate);
    await openLaunchpad(page);
    const op = candidate.replaceAll('/', '__');
    await write(page, `ops:\n  ${op}:\n    config:\n      release: more\n`);
    const answer = launchIsAnswered(page);
    await page.locator('[role=dialog]').getByRole('button', { name: 'Materialize' }).last().click();
    run = await runOf(answer);
    await ends(page, 'Canceled');
    await see(page, /would overspend/, /charged ε = 0/);
    if (await visible(page, /executors\.py/).isVisible()) throw new Error('a stack trace is shown');
    await checksStand(page);
  },

  // ---- the platform engineer ---------------------------------------------------------------------

  // Switched on here, so that a tick is there to be read later.
  async schedule(page) {
    await page.goto(`${plan.url}/automation`);
    await seeExactly(page, plan.schedule);
    await page.goto(schedulePage(plan.schedule));
    await see(page, 'Each tick says how many are left.');
    await page.locator('label:has(input[type=checkbox])').first().click();
  },

  // Of a cohort that nothing was spent on. Nothing is launched.
  async test_tick(page) {
    await page.goto(schedulePage(plan.unspent_schedule));
    await page.getByRole('button', { name: /Preview/ }).first().click();
    await page.getByRole('button', { name: 'Continue' }).click();
    await see(page, '1 run requests', 'Requested runs (1)');
  },

  async blocked(page) {
    await select(page, `key:"${blocked}/shared/*" or key:"${blocked}/${plan.blocked_method}/*"`);
    run = await materialise(page);
    await ends(page, 'Failure');
  },

  async blocking_check(page) {
    await openAsset(page, `${blocked}/${plan.blocked_method}/candidate_corpus`, 'checks');
    await seeExactly(page, 'no_canary');
    await visible(page, 'no_canary', { exact: true }).click();
    await see(page, /No declared canary occurs in the corpus/, 'at least one', /stay charged/);
  },

  async downstream_stopped(page) {
    await openAsset(page, `${blocked}/${plan.blocked_method}/corpus`);
    await see(page, 'Failed in', 'No metadata entries');
  },

  async run_tags(page) {
    await page.goto(`${plan.url}/runs`);
    await visible(page, `dpsynth/cohort: ${cohort}`).click();
    await visible(page, 'Add tag to filter').click();
    await page.getByText(`dpsynth/cohort: ${blocked}`).first().waitFor({ state: 'hidden' });
    await see(page, `dpsynth/cohort: ${cohort}`, /^dpsynth\/epsilon: /, /^dpsynth\/release: /);
  },

  async timeline(page) {
    await page.goto(`${plan.url}/overview/activity/timeline`);
    await page.getByText('1hr', { exact: true }).click();
    await see(page, 'Jobless asset materializations');
  },

  async skip_reason(page) {
    await page.goto(schedulePage(plan.schedule));
    const result = page.locator('tr').getByText('0 runs requested').filter({ visible: true });
    await result.first().waitFor({ timeout: RUN_PATIENCE });
    // The newest tick; the table is drawn anew with every tick, which may swallow a click.
    const newest = page.locator('table').last().locator('tr', { hasText: 'View logs' }).first();
    const reason = visible(page, /would overspend .* remaining/);
    for (let tries = 1; tries < 6 && !(await reason.isVisible()); tries += 1) {
      await newest.getByText('0 runs requested').last().click();
      await reason.waitFor({ timeout: PATIENCE / 6 }).catch(() => null);
    }
    await see(page, /would overspend .* remaining/, /budget.rounds is/);
  },

  // ---- the privacy officer -----------------------------------------------------------------------

  async budgets(page) {
    await search(page, 'privacy_budgets', 'privacy_budgets', 'Asset in');
    await see(page, `budget of ${cohort}`, /spent, .* left/);
    await toTop(page, 'Metadata');
  },

  // Releases and their ε, by which run, by whom, who may read them, what they build on.
  async five_questions(page) {
    const before = clicks;
    await search(page, `${cohort} audit_trail`, 'audit_trail', cohort);
    const table = await unfold(page, 'dpsynth/spend_table');
    const took = clicks - before;
    await table.locator('a[href*="/runs/"]').first().waitFor();
    const titles = (await table.locator('th').allInnerTexts())
      .map((title) => title.replace(/\s+/g, ' ').trim());
    for (const answer of ['ε alone', 'run', 'launched by', 'who may read', 'builds on']) {
      const place = titles.indexOf(answer);
      const cells = await table.locator(`tbody tr td:nth-child(${place + 1})`).allInnerTexts();
      if (place < 0 || !cells.length || !cells.every((cell) => cell.trim())) {
        throw new Error(`expected ${answer} of every release, got ${titles}: ${cells}`);
      }
    }
    const [needed, there] = await table.locator('table').first().evaluate((found) =>
      [found.scrollWidth, found.parentElement.clientWidth]);
    if (needed > there && plan.width >= 1440) throw new Error(`the table is cut off: ${needed} in ${there}`);
    if (took > MOST_CLICKS_TO_AN_ANSWER) throw new Error(`the answers took ${took} clicks`);
  },

  async statement(page) {
    await openAsset(page, `${cohort}/audit/privacy_statement`);
    const text = await unfold(page, 'dpsynth/statement');
    await text.getByText('What is not protected').first().waitFor();
  },

  async pack(page) {
    await openAsset(page, `${cohort}/audit/privacy_statement`);
    const link = page.locator('tr', { hasText: 'dpsynth/pack' }).locator('a').last();
    await page.goto(new URL(await link.getAttribute('href'), plan.url).href);
    await see(page, /after NIST SP 800-226/, /^1\. Which ε and δ/, /^A person must answer: Who chose ε = /);
  },

  async label(page) {
    await openAsset(page, `${cohort}/${method}/corpus`);
    const text = await unfold(page, 'dpsynth/privacy_label', 'Show JSON');
    await text.getByText(/neighboring_relation/).first().waitFor();
  },
};

const browser = await chromium.launch({ executablePath: plan.chromium, args: SWITCHES });
const page = await browser.newPage({
  viewport: VIEWPORT,
  reducedMotion: 'reduce',
  deviceScaleFactor: PICTURE_WIDTH / VIEWPORT.width,
});
page.setDefaultTimeout(PATIENCE);
await page.exposeFunction('countClick', () => { clicks += 1; });
await page.addInitScript(() => addEventListener('pointerdown', () => globalThis.countClick(), true));
if (plan.only) {  // The step that makes room is left out.
  await page.goto(`${plan.url}/asset-groups`);
  await makeRoom(page);
}
let underWay = '';
if (plan.frames) await film(page, plan.frames, () => underWay);
for (const [index, [name, step]] of Object.entries(STEPS).entries()) {
  if (plan.only && !plan.only.includes(name)) continue;
  const started = Date.now();
  const before = clicks;
  underWay = name;
  const picture = join(plan.output, `${String(index + 1).padStart(2, '0')}_${name}.png`);
  let failure = null;
  try {
    await step(page);
    await page.waitForTimeout(plan.settle_seconds * 1000);
  } catch (error) {
    failure = String(error).split('\n')[0];
  }
  await page.screenshot({ path: picture });
  const seconds = (Date.now() - started) / 1000;
  console.log(JSON.stringify({ step: name, picture, seconds, clicks: clicks - before, failure }));
}
await browser.close();
