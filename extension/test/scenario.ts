// What a user does and sees, in order, in any VS Code. A step waits for what it expects, up to a deadline, else throws.
import type { Chapter } from "./chapter.ts";
import { language } from "./language.ts";
import { roots } from "./roots.ts";
import { training } from "./training.ts";
import { views } from "./views.ts";

export const chapters: Chapter[] = [language, training, views, roots];
