// A moment of memory is kept by Enter and by a click, and let go by Escape; every part of the page takes the focus.
const when = () => page.locator(".moment").first().textContent();
const slider = page.getByRole("slider");
await slider.focus();
await page.keyboard.press("Home");
await page.keyboard.press("Enter");
const found = { kept: await when() };
const box = await slider.boundingBox();
await page.mouse.move(box.x + box.width / 2, box.y + 60);
found.unmoved = await when();
await slider.focus();
await page.keyboard.press("Escape");
found.left = await when();
await page.mouse.click(box.x + box.width * 0.8, box.y + 60);
found.clicked = await when();
await page.mouse.move(box.x + box.width * 0.3, box.y + 60);
found.still = await when();
found.holders = await page.locator(".holders li").count();
// With the Tab key alone through the page: what takes the focus, in order.
await page.evaluate(() => document.querySelector(".skip").focus());
const reached = [];
for (let presses = 0; presses < 80; presses++) {
  await page.keyboard.press("Tab");
  const now = await page.evaluate(() => {
    const one = document.activeElement;
    return one === document.body ? null : `${one.getAttribute("role") || one.tagName.toLowerCase()}`;
  });
  if (now === null) break;
  reached.push(now);
}
found.reached = [...new Set(reached)];
return found;
