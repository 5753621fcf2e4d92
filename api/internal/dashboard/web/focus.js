// Keeps the focused control in view while the page changes around it, unless the reader scrolls away.

const most = 0.9; // visible share of a control in view: its box may end between two pixels

// keepInSight scrolls back to the focused control where it leaves the window although nobody has scrolled: what stands above it has
// changed its height, perhaps in the very moment in which the focus came by a key.
export function keepInSight() {
  let focused = null, arrived = false; // arrived: it got the focus since the last check
  let seenAt = null; // scroll position when the control was last in view
  const watch = new IntersectionObserver((entries) => {
    const { target, intersectionRatio, boundingClientRect } = entries.at(-1);
    if (target !== document.activeElement) return;
    const byKey = arrived && target.matches(":focus-visible") && boundingClientRect.height <= innerHeight;
    arrived = false;
    if (intersectionRatio >= most) seenAt = scrollY;
    else if (byKey || seenAt === scrollY) {
      target.scrollIntoView({ block: "nearest", inline: "nearest" });
      seenAt = scrollY; // now: the reader may scroll away before the next check
    }
  }, { threshold: [0, most] });
  const check = () => { // at once, and whenever it enters or leaves the view
    watch.disconnect();
    if (focused) watch.observe(focused);
  };
  document.addEventListener("focusin", ({ target }) => {
    if (target === focused) return; // a moved row got its focus back
    focused = target;
    arrived = true;
    seenAt = null;
    check();
  });
  addEventListener("scroll", check, { passive: true });
}
