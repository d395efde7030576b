/** What vitest's `expect` and `vi` ask of the process that they find themselves in. To be imported before vitest. */
Object.assign(globalThis, {
  __vitest_worker__: {
    config: { expect: { poll: { timeout: 600_000 } }, fakeTimers: {} },
    filepath: '',
    providedContext: {},
  },
})
