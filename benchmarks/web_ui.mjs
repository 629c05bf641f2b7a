// Opens the asset graph once and prints when things appeared, in milliseconds from opening the page.
//   node web_ui.mjs URL CHROMIUM PLAYWRIGHT TEXT
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [url, executablePath, playwright, text] = process.argv.slice(2);
const { chromium } = createRequire(join(playwright, 'package.json'))('playwright-core');
const args = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking'];
const browser = await chromium.launch({ executablePath, args });
const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
const opened = Date.now();
await page.goto(`${url}/asset-groups`, { waitUntil: 'commit' });
await page.getByText(text, { exact: true }).filter({ visible: true }).first().waitFor();
const graph = Date.now() - opened;
const painted = await page.evaluate(
  () => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null,
);
console.log(JSON.stringify({ painted, graph }));
await browser.close();
