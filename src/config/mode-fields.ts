import type { ModeSettings } from '../modes/mode.ts'
import { DEFAULT_MODE, findMode, MODE_NAMES } from '../modes/registry.ts'
import type { ProxyMode } from './config.ts'
import type { Settings } from './settings.ts'

/** Gives the requested mode; the default for an unknown one, which readConfig reports. */
export function modeOf(settings: Settings): ProxyMode {
  const mode = settings.text('mode')
  return MODE_NAMES.includes(mode) ? mode : DEFAULT_MODE
}

export function modeSettingsOf(settings: Settings): ModeSettings {
  return findMode(modeOf(settings)).settings
}
