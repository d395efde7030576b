/** The flags that the process was started with, those with their defaults included, by name. */
export type Flags = ReadonlyMap<string, string>

/** What /statusz tells of the process. */
export interface ProcessStatus {
  /** Milliseconds since 1970. */
  readonly startedWallMs: number
  readonly version: string
}

const NOTE = 'For people: what this page looks like may change at any time.'

/** kube-proxy's /flagz (feature gate ComponentFlagz). */
export function flagzText(flags: Flags): string {
  const lines = [...flags].map(([name, value]) => `${name}=${value}`).sort()
  return ['', 'kube-proxy flagz', NOTE, '', ...lines, ''].join('\n')
}

/** kube-proxy's /statusz (feature gate ComponentStatusz); `paths` are those of the same port. */
export function statuszText(
  { startedWallMs, version }: ProcessStatus,
  now: { readonly wallMs: number; readonly paths: readonly string[] },
): string {
  const facts = {
    Started: new Date(startedWallMs).toUTCString(),
    Up: upText(now.wallMs - startedWallMs),
    'Node.js version': process.version,
    'Binary version': version,
    Paths: now.paths.join(' '),
  }
  const lines = Object.entries(facts).map(([name, value]) => `${name}: ${value}`)
  return ['', 'kube-proxy statusz', NOTE, '', ...lines, ''].join('\n')
}

function upText(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000))
  const two = (value: number) => String(value % 60).padStart(2, '0')
  return `${Math.floor(seconds / 3600)} hr ${two(Math.floor(seconds / 60))} min ${two(seconds)} sec`
}
