// Keeps the control that has the focus in sight while the page changes around it. A reader who scrolls away from it is left alone.

const most = 0.9; // of a control, to be in sight: its box may end between two pixels

// keepInSight scrolls back to the focused control where it leaves the window although nobody has scrolled: what stands above it has
// changed its height, perhaps in the very moment in which the focus came by a key.
export function keepInSight() {
  let focused = null, arrived = false; // whether it has the focus only since the last look
  let seenAt = null; // how far the page was scrolled when the control was last in sight
  const watch = new IntersectionObserver((entries) => {
    const { target, intersectionRatio, boundingClientRect } = entries.at(-1);
    if (target !== document.activeElement) return;
    const byKey = arrived && target.matches(":focus-visible") && boundingClientRect.height <= innerHeight;
    arrived = false;
    if (intersectionRatio >= most) seenAt = scrollY;
    else if (byKey || seenAt === scrollY) {
      target.scrollIntoView({ block: "nearest", inline: "nearest" });
      seenAt = scrollY; // now: the reader may scroll away before the next look
    }
  }, { threshold: [0, most] });
  const look = () => { // at once, and whenever it enters or leaves
    watch.disconnect();
    if (focused) watch.observe(focused);
  };
  document.addEventListener("focusin", ({ target }) => {
    if (target === focused) return; // a row that was moved has got it back
    focused = target;
    arrived = true;
    seenAt = null;
    look();
  });
  addEventListener("scroll", look, { passive: true });
}
