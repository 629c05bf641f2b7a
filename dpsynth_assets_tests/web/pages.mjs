// Opens HTML pages at three widths, and dark at one: axe-core looks for what some readers could not
// use, and the page must not be wider than the screen. Prints one line of JSON for each.
//
//   node pages.mjs '{"pages": [...], "output": ..., "chromium": ..., "playwright": ..., "axe": ...}'
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';

const plan = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(plan.playwright, 'package.json'))('playwright-core');
const axe = readFileSync(join(plan.playwright, 'node_modules', 'axe-core', 'axe.min.js'), 'utf8');
const WIDTHS = [1280, 1600, 390];

const browser = await chromium.launch({
  executablePath: plan.chromium, args: ['--headless', '--no-sandbox', '--disable-gpu'],
});
mkdirSync(plan.output, { recursive: true });
const looks = [...WIDTHS.map((width) => ['light', width]), ['dark', WIDTHS[0]]];  // No colour moves a line.
for (const path of plan.pages) for (const [colorScheme, width] of looks) {
  // The content policy of a page stops axe-core as well.
  const context = await browser.newContext({
    viewport: { width, height: 900 }, colorScheme, bypassCSP: true,
  });
  const page = await context.newPage();
  await page.goto(pathToFileURL(path).href);
  const picture = join(plan.output, `${basename(path, '.html')}-${colorScheme}-${width}.png`);
  await page.screenshot({ path: picture, fullPage: true });
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  const scrolling = await page.evaluate(() => [...document.querySelectorAll('.wide')]
    .filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => `${box.ariaLabel}: ${box.scrollWidth} in ${box.clientWidth}`));
  // A wide screen breaks no rule that a narrower one keeps.
  const { violations } = width === 1600 ? { violations: [] } : await (async () => {
    await page.evaluate(axe);
    return page.evaluate(() => globalThis.axe.run(document));
  })();
  console.log(JSON.stringify({
    page: basename(path),
    colors: colorScheme,
    width,
    overflow: Math.max(0, overflow),
    scrolling,
    violations: violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' ')}`),
  }));
  await context.close();
}
await browser.close();
