/** Of package.json: the bundler writes it into this expression. */
export function version(): string {
  return process.env.KPROBE_VERSION ?? 'from source'
}
