import { type FSWatcher, watch } from 'node:fs'
import type { Folders } from './look.ts'

/**
 * Reports changes in a few folders. Only a hint: inotify can be out of watches, and does not see changes
 * behind some mounts, so callers poll as well.
 */
export class FolderWatch {
  readonly #changed: () => void
  readonly #watchers = new Map<string, { readonly identity: string; readonly watcher: FSWatcher }>()

  constructor(changed: () => void) {
    this.#changed = changed
  }

  /** Watches these folders and no others. */
  set(folders: Folders): void {
    for (const [folder, { identity }] of [...this.#watchers])
      if (folders.get(folder) !== identity) this.#drop(folder)
    for (const [folder, identity] of folders) if (!this.#watchers.has(folder)) this.#add(folder, identity)
  }

  close(): void {
    for (const folder of [...this.#watchers.keys()]) this.#drop(folder)
  }

  #add(folder: string, identity: string): void {
    try {
      const watcher = watch(folder, { persistent: false }, () => this.#changed())
      watcher.on('error', () => this.#drop(folder))
      this.#watchers.set(folder, { identity, watcher })
    } catch {
      // Polling serves this folder; the next look tries again.
    }
  }

  #drop(folder: string): void {
    this.#watchers.get(folder)?.watcher.close()
    this.#watchers.delete(folder)
  }
}
