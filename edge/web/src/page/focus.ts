/** Where the keyboard is when what had it goes: a page that drops it sends its reader back to the start. */

/** Makes `change`; if what had the focus is hidden or gone then, `next` has it. */
export function keepingFocus(next: HTMLElement, change: () => void): void {
  const before = document.activeElement;
  change();
  if (before === null || before === document.body || isShown(document.activeElement)) return;
  next.focus();
}

function isShown(node: Element | null): boolean {
  return node !== null && node !== document.body && node.getClientRects().length > 0;
}
