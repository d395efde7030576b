import type { Family } from '../base/ip.ts'
import { count } from '../base/text.ts'
import type { FrontendTable } from '../model/frontend.ts'

/** The flags of the process by name, including defaults. */
export type Flags = ReadonlyMap<string, string>

/** Facts about the process for /statusz. */
export interface ProcessStatus {
  /** Milliseconds since 1970. */
  readonly startedWallMs: number
  readonly version: string
  readonly nodeName: string
}

interface WorkStatus {
  readonly wallMs: number
  /** The other paths of the port. */
  readonly paths: readonly string[]
  readonly mode: string
  /** The frontends in the kernel; undefined before the first sync. */
  readonly table: FrontendTable | undefined
  /** Whether /healthz answers 200. */
  readonly ready: boolean
  /** RFC 3339, by family. */
  readonly lastSync: Readonly<Partial<Record<Family, string>>>
}

const NOTE = 'This page is for people; its format may change at any time.'

/** Formats kube-proxy's /flagz (feature gate ComponentFlagz). */
export function flagzText(flags: Flags): string {
  const lines = [...flags].map(([name, value]) => `${name}=${value}`).sort()
  return ['', 'kube-proxy flagz', NOTE, '', ...lines, ''].join('\n')
}

/** Formats kube-proxy's /statusz (feature gate ComponentStatusz), with additional lines. */
export function statuszText(
  { startedWallMs, version, nodeName }: ProcessStatus,
  { wallMs, paths, mode, table, ready, lastSync }: WorkStatus,
): string {
  const facts = {
    Started: new Date(startedWallMs).toUTCString(),
    Up: upText(wallMs - startedWallMs),
    'Node.js version': process.version,
    'Binary version': version,
    Paths: paths.join(' '),
    Node: nodeName,
    'Proxy mode': mode,
    Programmed: table === undefined ? 'nothing yet' : programmedText(table),
    'Last sync': Object.entries(lastSync)
      .map(([family, at]) => `${family} ${at}`)
      .join(', '),
    Ready: ready ? 'yes' : 'no (see /healthz)',
  }
  const lines = Object.entries(facts).map(([name, value]) => `${name}: ${value}`)
  return ['', 'kube-proxy statusz', NOTE, '', ...lines, ''].join('\n')
}

/** A port of two families counts twice, and so do endpoints of two ports. */
function programmedText({ services }: FrontendTable): string {
  let ports = 0
  let endpoints = 0
  for (const service of services.values())
    for (const { cluster, local } of service.ports) {
      ports++
      endpoints += Math.max(cluster.length, local.length)
    }
  return `${count(services.size, 'Service')}, ${count(ports, 'port')}, ${count(endpoints, 'endpoint')}`
}

function upText(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000))
  const two = (value: number) => String(value % 60).padStart(2, '0')
  return `${Math.floor(seconds / 3600)} hr ${two(Math.floor(seconds / 60))} min ${two(seconds)} sec`
}
