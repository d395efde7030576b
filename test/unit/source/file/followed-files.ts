import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { systemClock } from '../../../../src/base/clock.ts'
import type { Refusal } from '../../../../src/model/fields.ts'
import type { NodeInfo, SourceEvent } from '../../../../src/model/snapshot.ts'
import { FileSource } from '../../../../src/source/file/file-source.ts'
import { type LocatedRefusal, problemText, type SourceProblem } from '../../../../src/source/source.ts'
import { temporaryFolder } from '../../../support/folder.ts'

/** Objects of a file: zones by name. */
export type Content = Readonly<Record<string, string>>

/** A folder of files, and what a FileSource gives of it. A Node is the smallest object: its zone stands for its content. */
export class FollowedFiles {
  readonly folder = temporaryFolder()
  readonly objects = new Map<string, string>()
  readonly batches: (readonly SourceEvent[])[] = []
  readonly problems: SourceProblem[] = []
  readonly refused: LocatedRefusal[] = []
  synced = 0
  source: FileSource | undefined

  async begin(options: Partial<ConstructorParameters<typeof FileSource>[0]> = {}): Promise<void> {
    this.source = new FileSource({
      path: this.folder,
      parseObject: parseNamed,
      clock: systemClock,
      ...options,
    })
    await this.source.start({
      events: async batch => {
        this.batches.push(batch)
        for (const event of batch) {
          if (event.kind !== 'Node') continue
          if (event.value === undefined) this.objects.delete(event.key)
          else this.objects.set(event.key, event.value.zone)
        }
      },
      synced: () => this.synced++,
      refusals: list => this.refused.splice(0, this.refused.length, ...list),
      problem: problem => this.problems.push(problem),
    })
  }

  path(file: string): string {
    return join(this.folder, file)
  }

  write(file: string, content: Content | string): void {
    writeFileSync(this.path(file), typeof content === 'string' ? content : yaml(content))
  }

  /** Problems of this kind whose place and text match. */
  said(kind: SourceProblem['kind'], text: RegExp): number {
    return this.problems.filter(
      problem => problem.kind === kind && text.test(`${problem.location}: ${problemText(problem)}`),
    ).length
  }
}

export function yaml(content: Content): string {
  return Object.entries(content)
    .map(([name, zone]) => `kind: Pod\nname: ${name}\nzone: ${zone}\n`)
    .join('---\n')
}

export const REFUSED = 'refused'

export function parseNamed(object: unknown): SourceEvent | Refusal | undefined {
  const { name, zone } = Object(object)
  if (typeof name !== 'string') return undefined
  if (zone === REFUSED) return { object: name, field: 'zone', value: zone, reason: 'not a zone' }
  return { kind: 'Node', key: name, value: nodeIn(name, String(zone)) }
}

export function nodeIn(name: string, zone: string): NodeInfo {
  return { name, zone, ips: [], podCidrs: [], uid: '', eligible: true, refusals: [] }
}

export function pause(ms: number): Promise<void> {
  return new Promise(resolve => setTimeout(resolve, ms))
}
